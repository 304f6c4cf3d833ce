//! Keys of objects: a rule that no key can satisfy is removed.

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use serde_json::{Map, Value as Json};

use super::close::parts;
use super::keywords::{also, fault};
use super::walk::pointers;
use super::{is_empty, quote, search};
use crate::abi::Failure;

/// If strings may have escapes by code, the engine takes `"\u0061"` for another key than `"a"`.
pub fn refuse_open_ones(schema: &Json) -> Result<(), Failure> {
    let all = pointers(schema);
    let parts = parts(schema, &all);
    for at in all.iter().filter(|at| !parts.contains(*at)) {
        let Some(node) = schema.pointer(at).and_then(Json::as_object) else { continue };
        let named = ["properties", "patternProperties", "required"].iter().any(|keyword| node.contains_key(*keyword));
        let all = node.get("allOf").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_object);
        let mut says = all.chain([node]).map(|one| one.get("additionalProperties"));
        if named && !says.any(|others| others == Some(&Json::Bool(false))) {
            let what = "other texts of the schema need \\u escapes, in which a named property could come again: \
                        set it to false, or take control characters out of the schema's texts";
            return Err(fault("additionalProperties", at, what));
        }
    }
    Ok(())
}

/// `codes`: strings may have escapes by code.
pub fn take_out(schema: &mut Json, codes: bool) {
    let all = pointers(schema);
    let has_patterns = |at: &&String| schema.pointer(at).is_some_and(|node| node.get("patternProperties").is_some());
    let with_patterns: Vec<String> = all.iter().filter(has_patterns).cloned().collect();
    if with_patterns.is_empty() {
        return;
    }
    let mut keys = Keys { builder: RegexBuilder::new(), codes, names: names(schema, &all) };
    for at in with_patterns {
        if let Some(Json::Object(node)) = schema.pointer_mut(&at) {
            keys.settle(node);
        }
    }
}

/// The keys that any object of the schema names.
fn names(schema: &Json, all: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for node in all.iter().filter_map(|at| schema.pointer(at)) {
        names.extend(node.get("properties").and_then(Json::as_object).into_iter().flat_map(Map::keys).cloned());
        let required = node.get("required").and_then(Json::as_array).into_iter().flatten();
        names.extend(required.filter_map(Json::as_str).map(String::from));
    }
    names.sort();
    names.dedup();
    names
}

struct Keys {
    builder: RegexBuilder,
    codes: bool,
    names: Vec<String>,
}

impl Keys {
    fn settle(&mut self, node: &mut Map<String, Json>) {
        let Some(Json::Object(patterns)) = node.shift_remove("patternProperties") else { return };
        let patterns = self.disjoint(patterns);
        let named: Vec<String> = self.names.clone();
        let (mut left, mut taken) = (Map::new(), Vec::new());
        for (pattern, schema) in patterns {
            if self.has_others(&pattern, &named) {
                taken.extend(self.quoted(search(&pattern)));
                left.insert(pattern, schema);
            } else {
                self.name(node, &pattern, &schema);
            }
        }
        if !taken.is_empty() && node.get("additionalProperties") != Some(&Json::Bool(false)) {
            let own = node.get("properties").and_then(Json::as_object).into_iter().flat_map(Map::keys);
            let required = node.get("required").and_then(Json::as_array).into_iter().flatten();
            let own: Vec<String> = own.cloned().chain(required.filter_map(Json::as_str).map(String::from)).collect();
            let any = self.quoted(RegexAst::Regex("(?s:.*)".into()));
            if !any.is_some_and(|any| self.leaves(any, &own, &taken)) {
                node.insert("additionalProperties".into(), Json::Bool(false));
            }
        }
        if !left.is_empty() {
            node.insert("patternProperties".into(), Json::Object(left));
        }
    }

    /// The engine requires patterns that have no key in common. Excluded patterns with common keys
    /// are joined into one, and a pattern whose keys are all excluded is removed.
    fn disjoint(&mut self, patterns: Map<String, Json>) -> Map<String, Json> {
        let (excluded, mut left): (Map<_, _>, Map<_, _>) =
            patterns.into_iter().partition(|(_, schema)| schema == false);
        let searched = |keys: &mut Self, pattern: &String| keys.builder.mk(&search(pattern)).ok();
        let taken: Vec<ExprRef> = excluded.keys().filter_map(|pattern| searched(self, pattern)).collect();
        left.retain(|pattern, _| searched(self, pattern).is_none_or(|regex| self.leaves(regex, &[], &taken)));
        if (1..taken.len()).any(|i| self.meets(taken[i], &taken[..i])) {
            let each: Vec<String> = excluded.keys().map(|pattern| format!("(?:{pattern})")).collect();
            left.insert(each.join("|"), Json::Bool(false));
        } else {
            left.extend(excluded);
        }
        left
    }

    /// Whether the regular expression allows something that one of these others allows.
    fn meets(&mut self, regex: ExprRef, others: &[ExprRef]) -> bool {
        let any = RegexAst::Or(others.iter().copied().map(RegexAst::ExprRef).collect());
        let both = RegexAst::And(vec![RegexAst::ExprRef(regex), any]);
        self.builder.mk(&both).map_or(true, |both| !is_empty(&self.builder, both))
    }

    /// Whether the pattern allows other keys than these.
    fn has_others(&mut self, pattern: &str, names: &[String]) -> bool {
        self.quoted(search(pattern)).is_none_or(|regex| self.leaves(regex, names, &[]))
    }

    /// Whether the regular expression allows more than these keys and what these others allow.
    fn leaves(&mut self, regex: ExprRef, names: &[String], others: &[ExprRef]) -> bool {
        let spelled = names.iter().map(|name| RegexAst::Literal(Json::from(name.as_str()).to_string()));
        let taken = spelled.chain(others.iter().copied().map(RegexAst::ExprRef)).collect();
        let rest = RegexAst::And(vec![RegexAst::ExprRef(regex), RegexAst::Not(Box::new(RegexAst::Or(taken)))]);
        self.builder.mk(&rest).map_or(true, |rest| !is_empty(&self.builder, rest))
    }

    fn quoted(&mut self, regex: RegexAst) -> Option<ExprRef> {
        self.builder.mk(&quote(regex, self.codes)).ok()
    }

    /// The schema that a pattern applies to its keys, as for properties.
    fn name(&mut self, node: &mut Map<String, Json>, pattern: &str, schema: &Json) {
        let matching: Vec<String> = self.names.clone().into_iter().filter(|name| self.allows(pattern, name)).collect();
        let Json::Object(properties) = node.entry("properties").or_insert_with(|| Json::Object(Map::new())) else {
            return;
        };
        for name in matching {
            match properties.get_mut(&name) {
                Some(Json::Object(own)) => also(own, schema.clone()),
                Some(Json::Bool(false)) => {}
                _ => _ = properties.insert(name, schema.clone()),
            }
        }
    }

    fn allows(&mut self, pattern: &str, name: &str) -> bool {
        let regex =
            self.builder.mk(&search(pattern)).and_then(|regex| self.builder.to_regex_limited(regex, super::FUEL));
        regex.map_or(true, |mut regex| regex.is_match(name))
    }
}
