//! Limits on a grammar, checked on its text before anything is built from it. The engine's own
//! limits catch the other cases, but only after as much work as they allow.

use regex_syntax::hir::{Hir, HirKind};
use serde_json::Value as Json;

use crate::abi::Failure;

/// The most characters that one regular expression or constant may require: no output is that long.
pub const MAX_SHORTEST: usize = 28 << 10;
/// Size of a regular expression when its repetitions are written out.
const MAX_WRITTEN: usize = 1 << 20;

/// Checks a regular expression. One that cannot be read passes: the engine says what is wrong with it.
pub fn check_regex(pattern: &str) -> Result<(), Failure> {
    let Ok(regex) = regex_syntax::parse(pattern) else { return Ok(()) };
    let shortest = regex.properties().minimum_len().unwrap_or(0);
    if shortest > MAX_SHORTEST {
        return Err(Failure::invalid(format!(
            "the shortest text that it allows has {shortest} bytes, and at most {MAX_SHORTEST} are accepted: repeat less"
        )));
    }
    let size = written(&regex);
    if size > MAX_WRITTEN {
        return Err(Failure::invalid(format!(
            "its repetitions multiply to a pattern of {size} characters, and at most {MAX_WRITTEN} are accepted: repeat less"
        )));
    }
    Ok(())
}

fn written(regex: &Hir) -> usize {
    match regex.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(text) => text.0.len(),
        HirKind::Class(_) => 1,
        HirKind::Repetition(repeat) => {
            let times = repeat.max.unwrap_or(repeat.min.max(1)).max(1);
            written(&repeat.sub).saturating_mul(times as usize)
        }
        HirKind::Capture(group) => written(&group.sub),
        HirKind::Concat(items) | HirKind::Alternation(items) => {
            items.iter().fold(0, |sum, item| sum.saturating_add(written(item)))
        }
    }
}

/// Why a regular expression cannot be read, in the user's own terms; None if it can.
pub fn regex_error(pattern: &str) -> Option<String> {
    let say = |what: String, at: usize| Some(format!("at character {}: {what}", pattern[..at].chars().count() + 1));
    match regex_syntax::parse(pattern) {
        Ok(regex) if !regex.properties().look_set().is_empty() => {
            Some("^, $ and \\b are understood at its ends alone: the whole text must match anyway".into())
        }
        Ok(_) => None,
        Err(regex_syntax::Error::Parse(error)) => say(error.kind().to_string(), error.span().start.offset),
        Err(regex_syntax::Error::Translate(error)) => say(error.kind().to_string(), error.span().start.offset),
        Err(error) => Some(error.to_string()),
    }
}

/// Checks the patterns and constants of a schema.
pub fn check_schema(schema: &Json) -> Result<(), Failure> {
    match schema {
        Json::Array(items) => items.iter().try_for_each(check_schema),
        Json::Object(fields) => fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
            ("pattern", Json::String(pattern)) => in_field("pattern", check_regex(pattern)),
            ("patternProperties", Json::Object(patterns)) => {
                patterns.keys().try_for_each(|pattern| in_field("patternProperties", check_regex(pattern)))?;
                patterns.values().try_for_each(check_schema)
            }
            ("const", value) => check_constant("const", value),
            ("enum", Json::Array(values)) => values.iter().try_for_each(|value| check_constant("enum", value)),
            ("default" | "examples", _) => Ok(()),
            _ => check_schema(value),
        }),
        _ => Ok(()),
    }
}

fn in_field(field: &str, checked: Result<(), Failure>) -> Result<(), Failure> {
    checked.map_err(|failure| Failure::invalid(format!("a \"{field}\" asks for too much: {}", failure.message)))
}

fn check_constant(field: &str, value: &Json) -> Result<(), Failure> {
    in_field(field, check_text(&value.to_string()))
}

/// Checks a text that the grammar spells out.
pub fn check_text(text: &str) -> Result<(), Failure> {
    if text.len() > MAX_SHORTEST {
        let size = text.len();
        return Err(Failure::invalid(format!(
            "it spells out a text of {size} bytes, and at most {MAX_SHORTEST} are accepted"
        )));
    }
    Ok(())
}
