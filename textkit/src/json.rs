//! JSON between requests and templates: values in as parsed, values out as Python's `json.dumps` writes them, because
//! chat templates were written, and models trained, with that spelling.

use std::borrow::Cow;
use std::fmt::Write;

use minijinja::value::Value;
use minijinja::{Error, State};
use serde::de::IgnoredAny;
use serde_json::Value as Json;

use crate::python::{bind, error, float_repr, given, iterate, require_width, type_name, view, Dict, View, Wide};

/// Stands for a number that serde_json would round or refuse: an object of this key and the number's text.
const MARK: &str = "$number";

/// JSON as Python's `json.loads` reads it: whole numbers keep all their digits, what no double holds is infinite, and
/// there are words for that.
pub fn parse(text: &str) -> serde_json::Result<Json> {
    serde_json::from_str(&mark_numbers(text))
}

/// The JSON text of what `parse` read.
pub fn text_of(json: &Json) -> String {
    let mark = format!("{{\"{MARK}\":\"");
    let text = json.to_string();
    let mut parts = text.split(&mark);
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        match part.split_once("\"}").filter(|(number, _)| is_special(number)) {
            Some((number, rest)) => out.extend([number, rest]),
            None => out.extend([mark.as_str(), part]),
        }
    }
    out
}

fn mark_numbers(text: &str) -> Cow<'_, str> {
    let mut marked = String::new();
    let mut copied = 0;
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' | b'I' | b'N' => {
                let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                let number = &text[at..at + bytes[at..].iter().take_while(is_part).count()];
                if is_special(number) {
                    marked.push_str(&text[copied..at]);
                    marked.push_str(&format!("{{\"{MARK}\":\"{number}\"}}"));
                    copied = at + number.len();
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(marked + &text[copied..]),
    }
}

/// Whether `number` is a whole number past 64 bits.
pub fn is_wide(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.len() >= 19
        && !digits.starts_with('0')
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// Whether `number` is one of JSON's that no double holds.
pub fn is_beyond_double(number: &str) -> bool {
    number.parse::<f64>().is_ok_and(f64::is_infinite) && serde_json::from_str::<IgnoredAny>(number).is_ok()
}

fn is_special(number: &str) -> bool {
    is_wide(number) || matches!(number, "Infinity" | "-Infinity" | "NaN") || is_beyond_double(number)
}

fn marked(map: &serde_json::Map<String, Json>) -> Option<Value> {
    let number = map.get(MARK).filter(|_| map.len() == 1)?.as_str().filter(|number| is_special(number))?;
    if !is_wide(number) {
        return number.parse::<f64>().ok().map(Value::from);
    }
    Some(number.parse::<i128>().map_or_else(|_| Value::from_object(Wide(number.into())), Value::from))
}

/// A parsed value as the template sees it. The order of object keys is kept.
pub fn to_template(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => {
            if let Some(value) = number.as_i64() {
                Value::from(value)
            } else if let Some(value) = number.as_u64() {
                Value::from(value)
            } else {
                Value::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_template).collect(),
        Json::Object(map) => marked(map).unwrap_or_else(|| {
            Value::from_pairs(map.iter().map(|(key, value)| (Value::from(key.as_str()), to_template(value))))
        }),
    }
}

/// The `tojson` filter of transformers: unlike Jinja's own it escapes nothing for HTML.
pub fn tojson(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["x", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ascii, indent, separators, sort_keys] = bind("tojson", names, 1, args)?;
    let indent = given(indent).map(|indent| match view(&indent) {
        View::Str(text) => Ok(text.to_string()),
        _ => require_width(&indent).map(|width| " ".repeat(width)),
    });
    let indent = indent.transpose()?;
    let mut item_separator = if indent.is_some() { "," } else { ", " }.to_string();
    let mut key_separator = ": ".to_string();
    if let Some(pair) = given(separators) {
        match iterate(&pair)?.as_slice() {
            [item, key] if item.as_str().is_some() && key.as_str().is_some() => {
                (item_separator, key_separator) = (item.to_string(), key.to_string());
            }
            _ => return Err(error("tojson: separators takes two strings")),
        }
    }
    let is_set = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let mut writer = Writer {
        out: String::new(),
        indent,
        item_separator,
        key_separator,
        ascii: is_set(ascii),
        sort_keys: is_set(sort_keys),
    };
    writer.value(&value.unwrap_or_default(), 0)?;
    Ok(Value::from(writer.out))
}

#[inline(never)]
fn not_json(value: &Value) -> Error {
    error(match value.is_undefined() {
        true => "tojson cannot write a value that is undefined".into(),
        false => format!("tojson cannot write a value of type {}", type_name(value)),
    })
}

struct Writer {
    out: String,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match view(value) {
            View::None => self.out.push_str("null"),
            View::Bool(value) => self.out.push_str(if value { "true" } else { "false" }),
            View::Int(_) | View::Wide => self.whole(value),
            View::Float(number) => self.float(number),
            View::Str(text) => self.string(text),
            View::List(items) | View::Tuple(items) => self.list(items, depth)?,
            View::Dict(items) => self.dict(items, depth)?,
            View::Undefined | View::Range(_) | View::Other => return Err(not_json(value)),
        }
        Ok(())
    }

    // Out of line: formatting needs stack space, and values nest.
    #[inline(never)]
    fn whole(&mut self, value: &Value) {
        let _ = write!(self.out, "{value}");
    }

    #[inline(never)]
    fn float(&mut self, number: f64) {
        if number.is_nan() {
            self.out.push_str("NaN");
        } else if number.is_infinite() {
            self.out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
        } else {
            self.out.push_str(&float_repr(number));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn list(&mut self, items: &[Value], depth: usize) -> Result<(), Error> {
        self.out.push('[');
        for (at, item) in items.iter().enumerate() {
            self.item_start(at == 0, depth + 1);
            self.value(item, depth + 1)?;
        }
        self.container_end(']', items.is_empty(), depth);
        Ok(())
    }

    fn dict(&mut self, items: &Dict, depth: usize) -> Result<(), Error> {
        let mut items: Vec<(&Value, &Value)> = items.iter().collect();
        if self.sort_keys {
            items.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.out.push('{');
        for (at, (key, value)) in items.iter().enumerate() {
            self.item_start(at == 0, depth + 1);
            self.key(key)?;
            self.out.push_str(&self.key_separator);
            self.value(value, depth + 1)?;
        }
        self.container_end('}', items.is_empty(), depth);
        Ok(())
    }

    #[inline(never)]
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match view(key) {
            View::Str(text) => self.string(text),
            View::None | View::Bool(_) | View::Int(_) | View::Wide | View::Float(_) => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            _ => return Err(not_json(key)),
        }
        Ok(())
    }

    fn item_start(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item_separator);
        }
        self.line(depth);
    }

    fn container_end(&mut self, close: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }
}
