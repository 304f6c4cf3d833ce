//! Values as Python's `str()` and `repr()` write them.

use std::fmt::{self, Write};

use minijinja::value::Value;

use super::value::{view, View};

pub fn str_of(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_string(),
        None => {
            let mut out = String::new();
            let _ = write_str(&mut out, value);
            out
        }
    }
}

pub fn repr_of(value: &Value) -> String {
    let mut out = String::new();
    let _ = write_repr(&mut out, value);
    out
}

pub fn write_str(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match view(value) {
        View::Str(text) => out.write_str(text),
        View::Undefined => Ok(()),
        _ => write_repr(out, value),
    }
}

pub fn write_repr(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match view(value) {
        View::Undefined => out.write_str("Undefined"),
        View::None => out.write_str("None"),
        View::Bool(true) => out.write_str("True"),
        View::Bool(false) => out.write_str("False"),
        View::Int(number) => write_int(out, number),
        View::Float(number) => out.write_str(&float_repr(number)),
        View::Str(text) => write_text(out, text),
        View::List(items) => write_items(out, items, "[", "]"),
        View::Tuple([item]) => {
            out.write_str("(")?;
            write_repr(out, item)?;
            out.write_str(",)")
        }
        View::Tuple(items) => write_items(out, items, "(", ")"),
        View::Dict(dict) => {
            out.write_str("{")?;
            for (at, (key, value)) in dict.iter().enumerate() {
                out.write_str(if at > 0 { ", " } else { "" })?;
                write_repr(out, key)?;
                out.write_str(": ")?;
                write_repr(out, value)?;
            }
            out.write_str("}")
        }
        View::Wide | View::Range(_) | View::Other => write_other(out, value),
    }
}

// Out of line: formatting needs stack space, and values nest.
#[inline(never)]
fn write_int(out: &mut dyn Write, number: i128) -> fmt::Result {
    write!(out, "{number}")
}

#[inline(never)]
fn write_other(out: &mut dyn Write, value: &Value) -> fmt::Result {
    write!(out, "{value}")
}

fn write_items(out: &mut dyn Write, items: &[Value], open: &str, close: &str) -> fmt::Result {
    out.write_str(open)?;
    for (at, item) in items.iter().enumerate() {
        out.write_str(if at > 0 { ", " } else { "" })?;
        write_repr(out, item)?;
    }
    out.write_str(close)
}

/// Rust's debug form changes to an exponent where Python does, but writes 1e16 for 1e+16.
#[inline(never)]
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => with_exponent(mantissa, exponent),
        None => text,
    }
}

/// A sign, and two digits at least.
pub fn with_exponent(mantissa: &str, exponent: &str) -> String {
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

#[inline(never)]
fn write_text(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if c < '\u{100}' => write!(out, "\\x{:02x}", c as u32)?,
            c if c < '\u{10000}' => write!(out, "\\u{:04x}", c as u32)?,
            c => write!(out, "\\U{:08x}", c as u32)?,
        }
    }
    out.write_char(quote)
}

/// `str.isprintable`. Rust's debug form of a text escapes the same categories; behind another character it lets those
/// be that extend it.
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        c => !String::from_iter(['a', c]).escape_debug().nth(1).is_some_and(|first| first == '\\'),
    }
}
