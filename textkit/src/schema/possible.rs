//! Schemas that no value satisfies become `false`: the engine omits false ones, and can otherwise
//! reach dead ends.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::walk::{pointers, target, Object};
use crate::abi::Failure;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// A multiple that lies so close to a limit counts as within it.
const CLOSE: f64 = 1e-9;

pub fn take_out(schema: &mut Json) -> Result<(), Failure> {
    drop_constants(schema);
    let all = pointers(schema);
    let mut possible = Possible { root: schema, targets: HashMap::new() };
    for at in &all {
        if let Some(at) = schema.pointer(at).and_then(Json::as_object).and_then(target) {
            possible.targets.insert(at, false);
        }
    }
    possible.find_targets();
    if !possible.holds(schema) {
        return Err(Failure::invalid("no text satisfies the schema"));
    }
    let is_void = |at: &&String| schema.pointer(at).is_some_and(|node| node.is_object() && !possible.holds(node));
    let void: Vec<String> = all.iter().filter(|at| !at.is_empty()).filter(is_void).cloned().collect();
    for at in void {
        if let Some(node) = schema.pointer_mut(&at) {
            *node = Json::Bool(false);
        }
    }
    Ok(())
}

/// Takes numbers out of an "enum" that the schema it stands in refuses.
fn drop_constants(schema: &mut Json) {
    for at in pointers(schema) {
        let Some(node) = schema.pointer_mut(&at).and_then(Json::as_object_mut) else { continue };
        let numbers = Numbers::of(node);
        if let Some(Json::Array(values)) = node.get_mut("enum") {
            values.retain(|value| value.as_f64().is_none_or(|number| numbers.hold(number)));
        }
    }
}

struct Possible<'a> {
    root: &'a Json,
    targets: HashMap<String, bool>, // of references: whether some value satisfies them, as far as is known
}

impl Possible<'_> {
    /// A schema that refers only to itself has no finite value: each schema counts as having none
    /// until one is found.
    fn find_targets(&mut self) {
        loop {
            let unknown = self.targets.iter().filter(|(_, known)| !**known).map(|(at, _)| at.clone());
            let found: Vec<String> =
                unknown.filter(|at| self.root.pointer(at).is_none_or(|node| self.holds(node))).collect();
            if found.is_empty() {
                return;
            }
            self.targets.extend(found.into_iter().map(|at| (at, true)));
        }
    }

    /// False: no value satisfies it.
    fn holds(&self, schema: &Json) -> bool {
        let Json::Object(node) = schema else { return schema != false };
        let list = |keyword: &str| node.get(keyword).and_then(Json::as_array);
        let refers = target(node).is_none_or(|at| self.targets.get(&at).copied().unwrap_or(true));
        let all = list("allOf").is_none_or(|all| all.iter().all(|one| self.holds(one)));
        let any = ["anyOf", "oneOf"]
            .iter()
            .all(|keyword| list(keyword).is_none_or(|any| any.iter().any(|one| self.holds(one))));
        let constant = node.get("const").is_none_or(|value| self.allows(node, value));
        let constants = list("enum").is_none_or(|values| values.iter().any(|value| self.allows(node, value)));
        let types = TYPES.iter().any(|name| has_type(node, name) && self.has_value(node, name));
        refers && all && any && constant && constants && types
    }

    fn allows(&self, node: &Object, value: &Json) -> bool {
        let name = match value {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        };
        has_type(node, name) && value.as_f64().is_none_or(|number| Numbers::of(node).hold(number))
    }

    /// Whether there is a value of this type.
    fn has_value(&self, node: &Object, name: &str) -> bool {
        let count = |keyword: &str| node.get(keyword).and_then(Json::as_u64);
        match name {
            "number" => Numbers::of(node).some_hold(),
            "array" => {
                let listed = node.get("prefixItems").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
                let least = count("minItems").unwrap_or(0) as usize;
                let rest = least <= listed.len() || node.get("items").is_none_or(|items| self.holds(items));
                rest && listed.iter().take(least).all(|item| self.holds(item))
            }
            "object" => {
                let required = node.get("required").and_then(Json::as_array).into_iter().flatten();
                let named = node.get("properties").and_then(Json::as_object);
                let has_patterns = node.contains_key("patternProperties");
                let property = |name: &str| named.and_then(|named| named.get(name));
                required.filter_map(Json::as_str).all(|name| match property(name) {
                    Some(schema) => self.holds(schema),
                    None => has_patterns || node.get("additionalProperties").is_none_or(|schema| self.holds(schema)),
                })
            }
            _ => true,
        }
    }
}

fn has_type(node: &Object, name: &str) -> bool {
    let is = |given: &Json| given == name || (name == "number" && given == "integer");
    match node.get("type") {
        None => true,
        Some(Json::Array(names)) => names.iter().any(is),
        Some(given) => is(given),
    }
}

/// The constraints of a schema on numbers.
struct Numbers {
    least: f64,
    most: f64,
    without_least: bool,
    without_most: bool,
    step: Option<f64>,
}

impl Numbers {
    fn of(node: &Object) -> Numbers {
        let number = |keyword: &str| node.get(keyword).and_then(Json::as_f64);
        let flag = |keyword: &str| node.get(keyword) == Some(&Json::Bool(true)); // as draft 4 has it
        let (least, above) = (number("minimum"), number("exclusiveMinimum"));
        let (most, below) = (number("maximum"), number("exclusiveMaximum"));
        let whole = has_type(node, "number") && !takes_fractions(node);
        let multiple = number("multipleOf").map(f64::abs).filter(|step| *step > 0.0);
        Numbers {
            least: least.unwrap_or(f64::NEG_INFINITY).max(above.unwrap_or(f64::NEG_INFINITY)),
            most: most.unwrap_or(f64::INFINITY).min(below.unwrap_or(f64::INFINITY)),
            without_least: flag("exclusiveMinimum")
                || above.is_some_and(|above| least.is_none_or(|least| above >= least)),
            without_most: flag("exclusiveMaximum") || below.is_some_and(|below| most.is_none_or(|most| below <= most)),
            step: match (multiple, whole) {
                (Some(step), true) => whole_multiple(step),
                (None, true) => Some(1.0),
                (step, false) => step,
            },
        }
    }

    fn hold(&self, number: f64) -> bool {
        let over = if self.without_least { number > self.least } else { number >= self.least };
        let under = if self.without_most { number < self.most } else { number <= self.most };
        over && under && self.step.is_none_or(|step| ((number / step).round() - number / step).abs() <= CLOSE)
    }

    fn some_hold(&self) -> bool {
        if !self.least.is_finite() || !self.most.is_finite() {
            return true;
        }
        let Some(step) = self.step else {
            return self.least < self.most || (self.least == self.most && !self.without_least && !self.without_most);
        };
        let (low, high) = (self.least / step, self.most / step);
        let first = if self.without_least { (low + CLOSE).floor() + 1.0 } else { (low - CLOSE).ceil() };
        let last = if self.without_most { (high - CLOSE).ceil() - 1.0 } else { (high + CLOSE).floor() };
        first <= last
    }
}

fn takes_fractions(node: &Object) -> bool {
    let is = |given: &Json| given == "number";
    match node.get("type") {
        None => true,
        Some(Json::Array(names)) => names.iter().any(is),
        Some(given) => is(given),
    }
}

/// The least integer that is a multiple of `step`, where it has few decimals.
fn whole_multiple(step: f64) -> Option<f64> {
    (1..=1000)
        .map(|times| step * f64::from(times))
        .find(|multiple| (multiple.round() - multiple).abs() <= CLOSE)
        .or(Some(step))
}
