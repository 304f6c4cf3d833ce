//! Where the subschemas of a schema lie.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

pub type Object = Map<String, Json>;

const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTS: [&str; 4] = ["prefixItems", "allOf", "anyOf", "oneOf"];
const SINGLE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// The pointers of the schemas that stand in this one itself.
pub fn children(node: &Object, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, value) in node {
        let name = keyword.as_str();
        match value {
            Json::Object(members) if MAPS.contains(&name) => {
                found.extend(members.keys().map(|key| format!("{at}/{name}/{}", escape(key))));
            }
            Json::Array(items) if LISTS.contains(&name) || name == "items" => {
                found.extend((0..items.len()).map(|i| format!("{at}/{name}/{i}")));
            }
            Json::Object(_) | Json::Bool(_) if SINGLE.contains(&name) => found.push(format!("{at}/{name}")),
            _ => {}
        }
    }
    found
}

/// The pointer that a reference within the document names.
pub fn target(node: &Object) -> Option<String> {
    let reference = node.get("$ref")?.as_str()?.strip_prefix('#')?;
    (reference.is_empty() || reference.starts_with('/')).then(|| percent_decoded(reference))
}

/// All schemas of the document, also those that references name, each once. A schema comes after those inside it.
pub fn pointers(root: &Json) -> Vec<String> {
    let (mut order, mut seen) = (Vec::new(), HashSet::new());
    let mut roots = vec![String::new()];
    while let Some(next) = roots.pop() {
        visit(root, next, &mut seen, &mut order, &mut roots);
    }
    order
}

fn visit(root: &Json, at: String, seen: &mut HashSet<String>, order: &mut Vec<String>, roots: &mut Vec<String>) {
    if !seen.insert(at.clone()) {
        return;
    }
    if let Some(node) = root.pointer(&at).and_then(Json::as_object) {
        roots.extend(target(node));
        for child in children(node, &at) {
            visit(root, child, seen, order, roots);
        }
    }
    order.push(at);
}

pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let code = (*first == b'%').then(|| tail.get(..2)).flatten().and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
