//! Objects with named properties have no others, unless the schema mentions others: otherwise a
//! model may go on inventing keys.

use std::collections::{HashMap, HashSet};

use serde_json::{json, Map, Value as Json};

use super::keywords::also;
use super::walk::{children, pointers, target, Object};

/// The keywords of an object that name its keys, and those that apply to the object that contains
/// them.
const OTHERS: [&str; 3] = ["additionalProperties", "unevaluatedProperties", "propertyNames"];
const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];

pub fn close_objects(schema: &mut Json) {
    let all = pointers(schema);
    let parts = parts(schema, &all);
    let mut recursive = Recursive::default();
    for at in all {
        if parts.contains(&at) {
            continue; // what it is a part of is closed
        }
        let Some(node) = schema.pointer(&at).and_then(Json::as_object) else { continue };
        let whole = Whole::of(schema, node);
        if whole.is_decided || whole.names.is_empty() {
            continue;
        }
        let least = node.get("minProperties").and_then(Json::as_u64).unwrap_or(0);
        let is_joint = whole.parts > 1 || !node.contains_key("properties");
        let closes_itself = is_union(node) && !applied(node, &at).iter().any(|part| parts.contains(part));
        // The engine cannot add keywords to a schema that refers to itself.
        let is_recursive = whole.targets.iter().any(|target| recursive.holds(schema, target));
        if least > whole.names.len() as u64 || (is_joint && (closes_itself || is_recursive)) {
            continue;
        }
        let names = whole.names;
        let Some(node) = schema.pointer_mut(&at).and_then(Json::as_object_mut) else { continue };
        if is_joint {
            let names: Map<_, _> = names.into_iter().map(|name| (name, Json::Bool(true))).collect();
            also(node, json!({"properties": names, "additionalProperties": false}));
        } else {
            if let Some(Json::Object(properties)) = node.get_mut("properties") {
                names.into_iter().for_each(|name| _ = properties.entry(name).or_insert(Json::Bool(true)));
            }
            node.insert("additionalProperties".into(), Json::Bool(false));
        }
    }
}

/// Whether it is nothing but one of others, which are closed themselves.
fn is_union(node: &Object) -> bool {
    let applied = ["properties", "allOf", "anyOf", "oneOf", "$ref"];
    let mut present = applied.iter().filter(|keyword| node.contains_key(**keyword));
    let first = present.next().copied();
    let is_list_of_one = node.get("allOf").and_then(Json::as_array).is_some_and(|all| all.len() == 1);
    present.next().is_none()
        && first.is_some_and(|keyword| keyword != "properties" && (keyword != "allOf" || is_list_of_one))
}

/// The targets of references that refer to themselves.
#[derive(Default)]
struct Recursive(HashMap<String, bool>);

impl Recursive {
    fn holds(&mut self, schema: &Json, target_at: &str) -> bool {
        if let Some(known) = self.0.get(target_at) {
            return *known;
        }
        let (mut seen, mut todo) = (HashSet::new(), vec![target_at.to_string()]);
        while let Some(at) = todo.pop() {
            let Some(node) = schema.pointer(&at).and_then(Json::as_object) else { continue };
            for next in children(node, &at).into_iter().chain(target(node)) {
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        *self.0.entry(target_at.to_string()).or_insert(seen.contains(target_at))
    }
}

/// The pointers of schemas that say a part of what holds for a value.
pub fn parts(schema: &Json, all: &[String]) -> HashSet<String> {
    let mut parts = HashSet::new();
    let mut todo = Vec::new();
    for at in all {
        let Some(node) = schema.pointer(at).and_then(Json::as_object) else { continue };
        if !is_union(node) {
            todo.extend(applied(node, at));
        }
    }
    while let Some(part) = todo.pop() {
        if let Some(node) = schema.pointer(&part).and_then(Json::as_object) {
            if !parts.contains(&part) {
                todo.extend(applied(node, &part));
            }
        }
        parts.insert(part);
    }
    parts
}

/// The schemas that apply to the same value as `node`.
fn applied(node: &Object, at: &str) -> Vec<String> {
    let within = |pointer: &String| {
        let keyword = pointer[at.len()..].split('/').nth(1).unwrap_or("");
        keyword == "allOf" || ALTERNATIVES.contains(&keyword)
    };
    let mut found: Vec<_> = children(node, at).into_iter().filter(within).collect();
    found.extend(target(node));
    found
}

/// The combined statement of a value's schemas.
#[derive(Default)]
struct Whole {
    names: Vec<String>,
    is_decided: bool, // one of them says which other keys there may be
    parts: usize,     // that name some
    targets: HashSet<String>,
}

impl Whole {
    fn of(schema: &Json, node: &Object) -> Whole {
        let mut whole = Whole::default();
        whole.add(schema, node);
        let mut seen = HashSet::new();
        whole.names.retain(|name| seen.insert(name.clone()));
        whole
    }

    fn add(&mut self, schema: &Json, node: &Object) {
        self.is_decided |= OTHERS.iter().any(|keyword| node.contains_key(*keyword));
        if let Some(Json::Object(properties)) = node.get("properties") {
            self.names.extend(properties.keys().cloned());
            self.parts += usize::from(!properties.is_empty());
            let required = node.get("required").and_then(Json::as_array).into_iter().flatten();
            self.names.extend(required.filter_map(Json::as_str).map(String::from));
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for part in node.get(keyword).and_then(Json::as_array).into_iter().flatten() {
                if let Json::Object(part) = part {
                    self.parts += 1;
                    self.add(schema, part);
                }
            }
        }
        if let Some(at) = target(node).filter(|at| self.targets.insert(at.clone())) {
            if let Some(Json::Object(part)) = schema.pointer(&at) {
                self.parts += 1;
                self.add(schema, part);
            }
        }
    }
}
