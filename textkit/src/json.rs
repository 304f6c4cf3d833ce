//! JSON between requests and templates: values in as parsed, values out as Python's `json.dumps` writes them, because
//! chat templates were written, and models trained, with that spelling.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// A parsed value as the template sees it. The order of object keys is kept.
pub fn to_template(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => {
            if let Some(value) = number.as_i64() {
                Value::from(value)
            } else if let Some(value) = number.as_u64() {
                Value::from(value)
            } else {
                Value::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_template).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (Value::from(key.as_str()), to_template(value))))
        }
    }
}

/// The `tojson` filter of transformers: unlike Jinja's own it escapes nothing for HTML.
pub fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(indent)?),
        }),
        _ => None,
    };
    let mut item_separator = if indent.is_some() { "," } else { ", " }.to_string();
    let mut key_separator = ": ".to_string();
    if let Some(pair) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(pair)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators takes two strings"))?;
        (item_separator, key_separator) = (item, key);
    }
    let mut writer = Writer {
        out: String::new(),
        indent,
        item_separator,
        key_separator,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
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
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson cannot write a value of kind {kind}"),
                ))
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
            return Ok(());
        }
        let number = f64::try_from(value.clone())?;
        if !number.is_finite() {
            let name = if number.is_nan() {
                "NaN"
            } else if number > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            self.out.push_str(name);
            return Ok(());
        }
        // Rust's debug form changes to an exponent where Python's repr does, but writes 1e16 for 1e+16.
        let text = format!("{number:?}");
        match text.split_once('e') {
            Some((mantissa, exponent)) => {
                let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                let _ = write!(self.out, "{mantissa}e{sign}{digits:0>2}");
            }
            None => self.out.push_str(&text),
        }
        Ok(())
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

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.item_start(empty, depth + 1);
            empty = false;
            self.value(&item?, depth + 1)?;
        }
        self.container_end(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in &keys {
            self.item_start(empty, depth + 1);
            empty = false;
            self.key(key)?;
            self.out.push_str(&self.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.container_end('}', empty, depth);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.as_str() {
            Some(text) => self.string(text),
            None => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
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
