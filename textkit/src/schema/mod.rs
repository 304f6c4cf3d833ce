//! Prepares a JSON schema for the engine: parts that the engine would misread are rewritten, parts
//! that no text can satisfy are removed, so that no text reaches a point where nothing can follow,
//! and parts that cannot be enforced are an error that names their place.

mod close;
mod keys;
mod keywords;
mod pattern;
mod possible;
mod walk;

use llguidance::api::ParserLimits;
use llguidance::derivre::{ExprRef, JsonQuoteOptions, RegexAst, RegexBuilder};
use llguidance::{regex_to_lark, GrammarBuilder, JsonCompileOptions};
use serde::de::IgnoredAny;
use serde_json::{json, Map, Value as Json};

use crate::abi::Failure;
use crate::bounds;
use crate::json::{is_beyond_double, is_wide};

/// The white space between the tokens of JSON: a space or a line break. Without a bound a model can
/// write spaces for ever and never break the schema, and with room for an indentation it wanders
/// there. A schema may ask for more.
const WHITESPACE: &str = r"[ ]|\r?\n";
/// The engine's options, a member of a schema's root. Some are ours: whether objects are open, for messages whose schema
/// it is, and what takes its place where it cannot be enforced.
const OPTIONS: &str = "x-guidance";
const OPEN_OBJECTS: &str = "open_objects";
const WHOSE: &str = "whose";
const OTHERWISE: &str = "otherwise";
/// The escapes of two characters. With `\u` a key that is taken could be written once more, in other letters.
const ESCAPES: &str = "nrbtf\\\"";
const ESCAPES_WITH_CODES: &str = "nrbtf\\\"u";
/// Steps that deciding whether a regular expression matches nothing may take.
const FUEL: u64 = 100_000;

/// `text` as it is given to the engine.
pub fn prepare(text: &str) -> Result<Json, Failure> {
    if let Some(why) = number_that_changes(text) {
        return Err(Failure::invalid(format!("the schema holds {why}")));
    }
    let schema: Json =
        serde_json::from_str(text).map_err(|error| Failure::invalid(format!("the schema is not JSON: {error}")))?;
    bounds::check_schema(&schema)?;
    let Json::Object(mut root) = schema else { return Ok(schema) };
    let mut options = match root.shift_remove(OPTIONS) {
        None => Map::new(),
        Some(Json::Object(options)) => options,
        Some(_) => return Err(Failure::invalid(format!("\"{OPTIONS}\" must be an object"))),
    };
    options.shift_remove(WHOSE);
    options.shift_remove(OTHERWISE);
    let open = options.shift_remove(OPEN_OBJECTS).is_some_and(|open| open == true);
    let mut schema = Json::Object(root);
    keywords::restate(&mut schema)?;
    if !open {
        close::close_objects(&mut schema);
    }
    possible::take_out(&mut schema)?;
    let codes = keywords::needs_codes(&schema);
    if codes {
        keys::refuse_open_ones(&schema)?;
    }
    keys::take_out(&mut schema, codes);
    let mut default = |option: &str, value: Json| _ = options.entry(option).or_insert(value);
    default("coerce_one_of", json!(true));
    default("json_allowed_escapes", json!(if codes { ESCAPES_WITH_CODES } else { ESCAPES }));
    if !options.contains_key("whitespace_pattern") && !options.contains_key("whitespace_flexible") {
        options.insert("whitespace_pattern".into(), WHITESPACE.into());
    }
    if let Json::Object(root) = &mut schema {
        root.insert(OPTIONS.into(), Json::Object(options));
    }
    Ok(schema)
}

/// A Lark grammar whose `%json` schemas are prepared.
#[derive(Default)]
pub struct Lark {
    pub text: String,
    /// Notes on schemas that were replaced by others.
    pub notes: Vec<String>,
}

/// `tried`: a schema that may give way does so where the engine cannot compile it, too.
pub fn prepare_lark(text: &str, tried: bool) -> Result<Lark, Failure> {
    const JSON: &str = "%json";
    let mut out = Lark::default();
    let mut rest = text;
    while let Some(next) = rest.find(['"', '/', '#', '%', '<']) {
        let (before, here) = rest.split_at(next);
        out.text.push_str(before);
        let length = match here.strip_prefix(JSON) {
            Some(schema) => {
                let mut values = serde_json::Deserializer::from_str(schema).into_iter::<IgnoredAny>();
                values.next();
                let end = values.byte_offset(); // 0 where there is no value
                match crate::json::parse(&schema[..end]) {
                    Ok(Json::Object(given)) => {
                        let prepared = enforceable(&schema[..end], &given, tried, &mut out.notes)?;
                        out.text.push_str(&format!("{JSON} {prepared}"));
                        rest = &schema[end..];
                        continue;
                    }
                    _ => JSON.len(), // the engine says what is wrong
                }
            }
            None if here.starts_with('#') || here.starts_with("//") => here.find('\n').unwrap_or(here.len()),
            None if here.starts_with('%') => 1,
            None if here.starts_with('<') => token(here),
            None => quoted(here),
        };
        out.text.push_str(&here[..length]);
        rest = &here[length..];
    }
    out.text.push_str(rest);
    Ok(out)
}

/// The prepared schema, or its declared replacement.
fn enforceable(text: &str, given: &Map<String, Json>, tried: bool, notes: &mut Vec<String>) -> Result<Json, Failure> {
    let options = given.get(OPTIONS).and_then(Json::as_object);
    let option = |name: &str| options.and_then(|options| options.get(name));
    let whose = option(WHOSE).and_then(Json::as_str).unwrap_or("a schema");
    let prepared = prepare(text).and_then(|schema| match tried {
        true => compiles(&schema).map(|()| schema),
        false => Ok(schema),
    });
    match (prepared, option(OTHERWISE)) {
        (Ok(schema), _) => Ok(schema),
        (Err(failure), None) => Err(Failure { message: format!("{whose}: {}", failure.message), ..failure }),
        (Err(failure), Some(otherwise)) => {
            notes.push(format!("{whose} may be anything: {}", failure.message.replace('\n', " ")));
            let mut other = otherwise.as_object().cloned().unwrap_or_default();
            other.insert(OPTIONS.into(), options.cloned().unwrap_or_default().into());
            prepare(&Json::from(other).to_string())
        }
    }
}

/// Whether the engine can compile a prepared schema; else what it says, with the place.
pub fn compiles(schema: &Json) -> Result<(), Failure> {
    const MOST_TRIED: usize = 256;
    let fault = |schema: Json| {
        let builder = GrammarBuilder::new(None, ParserLimits::default());
        let made = JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema);
        made.err().map(|error| crate::grammar::sentence(&error))
    };
    let Some(message) = fault(schema.clone()) else { return Ok(()) };
    // Whether a part has the same fault by itself. Smaller parts are tried first.
    let has_fault = |at: &String| {
        let Some(Json::Object(part)) = schema.pointer(at) else { return false };
        let mut part = part.clone();
        for shared in [OPTIONS, "$defs", "definitions"] {
            if let Some(value) = schema.get(shared) {
                part.entry(shared).or_insert(value.clone());
            }
        }
        fault(Json::Object(part)).as_ref() == Some(&message)
    };
    let place = walk::pointers(schema).into_iter().take(MOST_TRIED).find(has_fault);
    Err(Failure::invalid(place.map_or(message.clone(), |at| format!("at \"#{at}\": {message}"))))
}

/// Bytes of the token `<name>` that the text begins with: the name may hold quotes and slashes.
fn token(text: &str) -> usize {
    match text[1..].find(|c: char| c.is_whitespace() || c == '<' || c == '>') {
        Some(end) if text[1..].as_bytes()[end] == b'>' => end + 2,
        _ => 1, // the engine says what is wrong
    }
}

/// Bytes of what begins with a quote, that character, and ends with the next one that no `\` precedes.
fn quoted(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != bytes[0] {
        at += 1 + usize::from(bytes[at] == b'\\');
    }
    (at + 1).min(bytes.len())
}

fn quote(regex: RegexAst, codes: bool) -> RegexAst {
    let allowed_escapes = if codes { ESCAPES_WITH_CODES } else { ESCAPES }.to_string();
    RegexAst::JsonQuote(Box::new(regex), JsonQuoteOptions { allowed_escapes, raw_mode: false })
}

/// The engine's parse of a pattern.
fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}

/// Whether it certainly matches nothing.
fn is_empty(builder: &RegexBuilder, regex: ExprRef) -> bool {
    builder.to_regex_limited(regex, FUEL).is_ok_and(|mut regex| regex.always_empty())
}

/// The first number that the reader of JSON can hold only rounded or not at all, and what to do about it.
fn number_that_changes(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at += quoted(&text[at..]),
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| b"+-.0123456789Ee".contains(byte)).count();
                let number = &text[at..at + length];
                if is_wide(number) {
                    return Some(format!(
                        "the integer {number}, which has more than 64 bits: write it as a number with a fraction or as text"
                    ));
                }
                if is_beyond_double(number) {
                    return Some(format!("the number {number}, which no double holds: write a smaller one"));
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}
