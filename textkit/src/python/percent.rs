//! `format % values`.

use minijinja::value::Value;
use minijinja::Error;

use super::operators::as_float;
use super::spec::{closing, float_digits, group, pad, Float};
use super::text::{repr_of, str_of};
use super::value::{index, type_name, view, View};
use super::{error, MAX_WIDTH};

struct Values<'a> {
    given: &'a Value,
    tuple: Option<&'a [Value]>,
    at: usize,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value, Error> {
        let next = match self.tuple {
            Some(items) => items.get(self.at).cloned(),
            None => (self.at == 0).then(|| self.given.clone()),
        };
        self.at += 1;
        next.ok_or_else(|| error("not enough arguments for format string"))
    }

    fn named(&mut self, key: &str) -> Result<Value, Error> {
        self.at = usize::MAX;
        match view(self.given) {
            View::Dict(dict) => {
                dict.get(&Value::from(key)).cloned().ok_or_else(|| error(format!("no key {key} for format string")))
            }
            _ => Err(error("format requires a mapping")),
        }
    }

    /// A value with items may have unused ones: it counts as a mapping.
    fn check_all_used(&self) -> Result<(), Error> {
        let left = match self.tuple {
            Some(items) => self.at < items.len(),
            None => self.at == 0 && !matches!(view(self.given), View::Dict(_) | View::List(_) | View::Range(_)),
        };
        if left {
            Err(error("not all arguments converted during string formatting"))
        } else {
            Ok(())
        }
    }
}

#[derive(Default)]
struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub fn format_percent(format: &str, given: &Value) -> Result<String, Error> {
    let tuple = match view(given) {
        View::Tuple(items) => Some(items),
        _ => None,
    };
    let mut values = Values { given, tuple, at: 0 };
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut key = None;
        if rest.starts_with('(') {
            let end = closing(rest, 0, ['(', ')']).ok_or_else(|| error("incomplete format key"))?;
            key = Some(&rest[1..end]);
            rest = &rest[end + 1..];
        }
        let mut conversion = Conversion::default();
        rest = read_conversion(rest, &mut conversion, &mut values)?;
        let kind = rest.chars().next().ok_or_else(|| error("incomplete format"))?;
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match key {
            Some(key) => values.named(key)?,
            None => values.next()?,
        };
        out.push_str(&convert(kind, &conversion, &value)?);
    }
    out.push_str(rest);
    values.check_all_used()?;
    Ok(out)
}

fn read_conversion<'a>(text: &'a str, conversion: &mut Conversion, values: &mut Values) -> Result<&'a str, Error> {
    let flags = text.len() - text.trim_start_matches(['-', '+', ' ', '#', '0']).len();
    for flag in text[..flags].chars() {
        match flag {
            '-' => conversion.left = true,
            '+' => conversion.plus = true,
            ' ' => conversion.space = true,
            '#' => conversion.alternate = true,
            _ => conversion.zero = true,
        }
    }
    let (width, mut rest) = read_number(&text[flags..], values)?;
    if let Some(width) = width {
        conversion.left |= width < 0;
        conversion.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
    }
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = read_number(after, values)?;
        conversion.precision = Some(usize::try_from(precision.unwrap_or(0)).unwrap_or(0));
        rest = after;
    }
    if conversion.width.max(conversion.precision.unwrap_or(0)) > MAX_WIDTH {
        return Err(error("a width of the format string is too large"));
    }
    Ok(rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest))
}

fn read_number<'a>(text: &'a str, values: &mut Values) -> Result<(Option<i128>, &'a str), Error> {
    if let Some(rest) = text.strip_prefix('*') {
        return match index(&values.next()?) {
            Some(number) => Ok((Some(number), rest)),
            None => Err(error("* wants int")),
        };
    }
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = match digits {
        0 => None,
        _ => Some(text[..digits].parse().map_err(|_| error("a width of the format string is too large"))?),
    };
    Ok((number, &text[digits..]))
}

fn convert(kind: char, conversion: &Conversion, value: &Value) -> Result<String, Error> {
    let cut = |text: String| match conversion.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    let align = if conversion.left { '<' } else { '>' };
    Ok(match kind {
        's' => pad(&cut(str_of(value)), ' ', align, conversion.width),
        'r' => pad(&cut(repr_of(value)), ' ', align, conversion.width),
        'a' => pad(&cut(ascii(&repr_of(value))), ' ', align, conversion.width),
        'c' => pad(&character(value)?, ' ', align, conversion.width),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => number(conversion, &whole(kind, conversion, value)?),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let float =
                as_float(value).ok_or_else(|| error(format!("%{kind} needs a number, not {}", type_name(value))))?;
            let form = Float { kind, precision: conversion.precision.unwrap_or(6), alternate: conversion.alternate };
            number(conversion, &float_digits(float, form))
        }
        _ => return Err(error(format!("unsupported format character '{kind}'"))),
    })
}

fn ascii(text: &str) -> String {
    text.chars()
        .map(|c| match c as u32 {
            0..0x80 => c.to_string(),
            0x80..0x100 => format!("\\x{:02x}", c as u32),
            0x100..0x10000 => format!("\\u{:04x}", c as u32),
            _ => format!("\\U{:08x}", c as u32),
        })
        .collect()
}

fn character(value: &Value) -> Result<String, Error> {
    let code = index(value).and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
    let text = value.as_str().filter(|text| text.chars().count() == 1).map(str::to_string);
    text.or_else(|| code.map(String::from)).ok_or_else(|| error("%c requires int or char"))
}

fn whole(kind: char, conversion: &Conversion, value: &Value) -> Result<String, Error> {
    let number = match (view(value), kind) {
        (View::Wide, 'd' | 'i' | 'u') => return Ok(value.to_string()),
        (View::Float(number), 'd' | 'i' | 'u') if number.is_finite() => Some(number.trunc() as i128),
        _ => index(value),
    };
    let number =
        number.ok_or_else(|| error(format!("%{kind} format: a real number is required, not {}", type_name(value))))?;
    let (prefix, digits) = match kind {
        'x' => ("0x", format!("{:x}", number.unsigned_abs())),
        'X' => ("0X", format!("{:X}", number.unsigned_abs())),
        'o' => ("0o", format!("{:o}", number.unsigned_abs())),
        _ => ("", number.unsigned_abs().to_string()),
    };
    let prefix = if conversion.alternate { prefix } else { "" };
    let sign = if number < 0 { "-" } else { "" };
    let digits = format!("{digits:0>width$}", width = conversion.precision.unwrap_or(0));
    Ok(format!("{sign}{prefix}{digits}"))
}

fn number(conversion: &Conversion, digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None if conversion.plus => ("+", digits),
        None if conversion.space => (" ", digits),
        None => ("", digits),
    };
    if conversion.zero && !conversion.left {
        group(sign, digits, None, '0', conversion.width)
    } else {
        pad(&format!("{sign}{digits}"), ' ', if conversion.left { '<' } else { '>' }, conversion.width)
    }
}
