//! Keywords: those without effect are removed, and those that the engine does not know are replaced
//! by known ones, or are an error.

use llguidance::derivre::RegexBuilder;
use serde_json::{json, Value as Json};

use super::pattern;
use super::search;
use super::walk::{escape, pointers, target, Object};
use crate::abi::Failure;

/// Keywords of the engine that constrain no value.
const ANNOTATIONS: [&str; 4] = ["deprecated", "contentSchema", "$vocabulary", "$dynamicAnchor"];
/// The values of "format" that the engine enforces. Others are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Texts that the engine's own formats let through: a 29th of February in every year, a year 0, a
/// second 60 at any time.
const NARROWER: [(&str, &str); 4] =
    [("date", DATE), ("date-time", DATE), ("date-time", r"^.{17}[0-5]"), ("time", r"^.{6}[0-5]")];
const DATE: &str = concat!(
    r"^(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:0[13-9]|1[0-2]|02-(?:[01]|2[0-8]))",
    r"|^(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29",
);
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
const UNENFORCED: [&str; 11] = [
    "not",
    "if",
    "uniqueItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

pub fn restate(schema: &mut Json) -> Result<(), Failure> {
    for at in pointers(schema) {
        if let Some(reference) = schema.pointer(&at).and_then(Json::as_object).and_then(target) {
            if schema.pointer(&reference).is_none() {
                return Err(fault("$ref", &at, &format!("the schema has nothing at \"#{reference}\"")));
            }
        }
        let Some(node) = schema.pointer_mut(&at).and_then(Json::as_object_mut) else { continue };
        drop_neutral(node);
        check_types(node, &at)?;
        restate_names(node, &at)?;
        for keyword in UNENFORCED {
            if node.contains_key(keyword) {
                return Err(fault(keyword, &at, "it is not supported: leave it out"));
            }
        }
        check_numbers(node, &at)?;
        check_count(node, &at)?;
        restate_format(node);
        restate_patterns(node, &at)?;
    }
    Ok(())
}

/// Whether strings of the schema need escapes by code: others cannot be written.
pub fn needs_codes(schema: &Json) -> bool {
    let needs = |at: &String| {
        let Some(node) = schema.pointer(at).and_then(Json::as_object) else { return false };
        let constants = node.get("const").into_iter().chain(node.get("enum"));
        let patterns = node.get("patternProperties").and_then(Json::as_object).into_iter().flat_map(Object::keys);
        let pattern = node.get("pattern").and_then(Json::as_str);
        constants.into_iter().any(holds_codes)
            || patterns.map(String::as_str).chain(pattern).any(|pattern| !pattern::is_plain(pattern))
    };
    pointers(schema).iter().any(needs)
}

fn holds_codes(value: &Json) -> bool {
    match value {
        Json::String(text) => !text.chars().all(pattern::is_plain_char),
        Json::Array(items) => items.iter().any(holds_codes),
        Json::Object(members) => members.values().any(holds_codes),
        _ => false,
    }
}

pub fn fault(keyword: &str, at: &str, what: &str) -> Failure {
    Failure::invalid(format!("\"{keyword}\" at \"#{at}\" cannot be enforced: {what}"))
}

/// Removes keywords that have no effect.
fn drop_neutral(node: &mut Object) {
    for keyword in ANNOTATIONS {
        node.shift_remove(keyword);
    }
    let most = node.get("maxItems").and_then(Json::as_u64).unwrap_or(u64::MAX);
    if !node.contains_key("contains") {
        node.shift_remove("minContains");
        node.shift_remove("maxContains");
    }
    let decides = node.contains_key("if") && (node.contains_key("then") || node.contains_key("else"));
    if !decides {
        for keyword in ["if", "then", "else"] {
            node.shift_remove(keyword);
        }
    }
    node.retain(|keyword, value| match keyword.as_str() {
        "uniqueItems" => value != false && most > 1,
        "unevaluatedItems" | "unevaluatedProperties" => value != true,
        "not" => value != false,
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_none_or(|map| !map.is_empty())
        }
        _ => true,
    });
}

fn check_types(node: &Object, at: &str) -> Result<(), Failure> {
    let names = match node.get("type") {
        None => return Ok(()),
        Some(Json::Array(names)) => names.as_slice(),
        Some(name) => std::slice::from_ref(name),
    };
    match names.iter().find(|name| name.as_str().is_none_or(|name| !TYPES.contains(&name))) {
        Some(name) => Err(fault("type", at, &format!("there is no type {name}"))),
        None => Ok(()),
    }
}

/// `propertyNames` in the words of `properties` and `patternProperties`, where it says one thing.
fn restate_names(node: &mut Object, at: &str) -> Result<(), Failure> {
    let Some(names) = node.get("propertyNames") else { return Ok(()) };
    let refused =
        || Err(fault("propertyNames", at, "only \"enum\", \"const\", \"pattern\" or lengths are supported there"));
    let Some(names) = names.as_object() else {
        if names == &Json::Bool(false) {
            node.insert("maxProperties".into(), json!(0));
        }
        node.shift_remove("propertyNames");
        return Ok(());
    };
    let rules: Vec<_> = names
        .iter()
        .filter(|(keyword, _)| !matches!(keyword.as_str(), "title" | "description" | "$comment" | "$schema" | "format"))
        .filter(|(keyword, value)| *keyword != "type" || *value != "string")
        .map(|(keyword, value)| (keyword.as_str(), value))
        .collect();
    let length = |keyword: &str| names.get(keyword).and_then(Json::as_u64);
    let (listed, pattern) = match rules.as_slice() {
        [] => {
            node.shift_remove("propertyNames");
            return Ok(());
        }
        [("enum", Json::Array(values))] => (values.clone(), None),
        [("const", value)] => (vec![(*value).clone()], None),
        [("pattern", Json::String(pattern))] => (Vec::new(), Some(pattern.clone())),
        rules
            if rules.iter().all(|(keyword, value)| matches!(*keyword, "minLength" | "maxLength") && value.is_u64()) =>
        {
            let most = length("maxLength").map_or(String::new(), |most| most.to_string());
            (Vec::new(), Some(format!(r"^[\s\S]{{{},{most}}}$", length("minLength").unwrap_or(0))))
        }
        _ => return refused(),
    };
    if node.contains_key("patternProperties") || node.contains_key("properties") {
        return refused();
    }
    node.shift_remove("propertyNames");
    let value = node.shift_remove("additionalProperties").unwrap_or(Json::Bool(true));
    node.insert("additionalProperties".into(), Json::Bool(false));
    match pattern {
        Some(pattern) => node.insert("patternProperties".into(), json!({ pattern: value })),
        None => {
            let keys = listed.iter().filter_map(Json::as_str).map(|key| (key.to_string(), value.clone()));
            node.insert("properties".into(), Json::Object(keys.collect()))
        }
    };
    Ok(())
}

/// Constants that a double cannot hold become others; limits move inwards.
fn check_numbers(node: &mut Object, at: &str) -> Result<(), Failure> {
    for keyword in ["const", "enum"] {
        if let Some(number) = node.get(keyword).and_then(first_inexact) {
            return Err(fault(
                keyword,
                at,
                &format!("{number} has more digits than a double can hold: write it as text"),
            ));
        }
    }
    for (keyword, inwards) in [
        ("minimum", f64::next_up as fn(f64) -> f64),
        ("exclusiveMinimum", f64::next_up),
        ("maximum", f64::next_down),
        ("exclusiveMaximum", f64::next_down),
    ] {
        let Some(limit) = node.get_mut(keyword).filter(|limit| is_inexact(limit)) else { continue };
        let Some(rounded) = limit.as_f64() else { continue };
        let exact = limit.as_i64().map(i128::from).or(limit.as_u64().map(i128::from)).unwrap_or(0);
        let outwards = if keyword.ends_with("inimum") { (rounded as i128) < exact } else { (rounded as i128) > exact };
        *limit = json!(if outwards { inwards(rounded) } else { rounded });
    }
    Ok(())
}

fn first_inexact(value: &Json) -> Option<&Json> {
    match value {
        Json::Array(items) => items.iter().find_map(first_inexact),
        Json::Object(members) => members.values().find_map(first_inexact),
        _ => Some(value).filter(|value| is_inexact(value)),
    }
}

fn is_inexact(value: &Json) -> bool {
    match (value.as_i64(), value.as_u64()) {
        (Some(i64::MAX), _) => false, // as the engine reads the double next to it
        (Some(integer), _) => integer as f64 as i128 != i128::from(integer),
        (None, Some(integer)) => integer as f64 as i128 != i128::from(integer),
        (None, None) => false,
    }
}

/// Keys that are not listed may repeat one another, so they are counted as one.
fn check_count(node: &Object, at: &str) -> Result<(), Failure> {
    let Some(least) = node.get("minProperties").and_then(Json::as_u64) else { return Ok(()) };
    let required = node.get("required").and_then(Json::as_array).map_or(0, Vec::len) as u64;
    let is_closed = node.get("additionalProperties") == Some(&Json::Bool(false));
    let is_open = !is_closed || node.contains_key("patternProperties");
    if is_open && least > required + 1 {
        return Err(fault("minProperties", at, "a model may write one key twice: list the keys, or ask for one"));
    }
    Ok(())
}

fn restate_format(node: &mut Object) {
    let Some(format) = node.get("format") else { return };
    let Some(name) = format.as_str().filter(|name| FORMATS.contains(name)).map(String::from) else {
        node.shift_remove("format");
        return;
    };
    for (_, pattern) in NARROWER.iter().filter(|(format, _)| *format == name) {
        also(node, json!({ "pattern": pattern }));
    }
}

/// Adds a further constraint.
pub fn also(node: &mut Object, schema: Json) {
    match node.entry("allOf").or_insert_with(|| json!([])) {
        Json::Array(all) => all.push(schema),
        _ => {} // the engine says what is wrong
    }
}

fn restate_patterns(node: &mut Object, at: &str) -> Result<(), Failure> {
    if let Some(Json::String(pattern)) = node.get_mut("pattern") {
        *pattern = restated(pattern).map_err(|what| fault("pattern", at, &what))?;
    }
    if let Some(Json::Object(patterns)) = node.get_mut("patternProperties") {
        let at = format!("{at}/patternProperties");
        for (pattern, schema) in std::mem::take(patterns) {
            let key = restated(&pattern).map_err(|what| fault(&pattern, &at, &what))?;
            if patterns.insert(key, schema).is_some() {
                return Err(fault(&pattern, &at, &format!("another pattern is the same as {}", escape(&pattern))));
            }
        }
    }
    Ok(())
}

fn restated(pattern: &str) -> Result<String, String> {
    let regex = pattern::translate(pattern)?;
    match RegexBuilder::new().mk(&search(&regex)) {
        Ok(_) => Ok(regex),
        Err(error) => Err(crate::bounds::regex_error(pattern).unwrap_or_else(|| error.to_string())),
    }
}
