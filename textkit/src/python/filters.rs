//! Jinja2's filters of texts and numbers.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::arguments::{bind, given, keywords};
use super::methods::{change_case, justify, replace, require_width, split_lines, strip};
use super::objects::Wide;
use super::operators::{add, arithmetic, as_float, bound, escape, get_item, int};
use super::percent::format_percent;
use super::text::str_of;
use super::value::{dict, index, iterate, length, tuple, type_name, view, View};
use super::{error, Function};

pub const FILTERS: &[(&str, Function)] = &[
    ("abs", abs),
    ("attr", attr),
    ("capitalize", |_, args| text("capitalize", args, |text| change_case(text, "capitalize"))),
    ("center", center),
    ("d", default),
    ("default", default),
    ("e", escape_filter),
    ("escape", escape_filter),
    ("float", float),
    ("forceescape", |_, args| {
        let [value] = bind("forceescape", ["value"], 1, args)?;
        Ok(Value::from_safe_string(escape(&str_of(&value.unwrap_or_default()))))
    }),
    ("format", format),
    ("indent", indent),
    ("int", int_filter),
    ("lower", |_, args| text("lower", args, |text| change_case(text, "lower"))),
    ("replace", replace_filter),
    ("round", round),
    ("safe", |_, args| {
        let [value] = bind("safe", ["value"], 1, args)?;
        Ok(Value::from_safe_string(str_of(&value.unwrap_or_default())))
    }),
    ("string", string),
    ("title", |_, args| text("title", args, title)),
    ("trim", trim),
    ("truncate", truncate),
    ("upper", |_, args| text("upper", args, |text| change_case(text, "upper"))),
    ("urlencode", urlencode),
    ("wordcount", wordcount),
];

fn text(name: &str, args: &[Value], made: impl Fn(&str) -> String) -> Result<Value, Error> {
    let [value] = bind(name, ["s"], 1, args)?;
    Ok(Value::from(made(&str_of(&value.unwrap_or_default()))))
}

fn abs(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("abs", ["x"], 1, args)?;
    let value = value.unwrap_or_default();
    match (view(&value), index(&value)) {
        (View::Float(number), _) => Ok(Value::from(number.abs())),
        (_, Some(number)) => Ok(int(number.abs())),
        _ => Err(error(format!("bad operand type for abs(): '{}'", type_name(&value)))),
    }
}

/// An attribute, never a key.
fn attr(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, name] = bind("attr", ["obj", "name"], 2, args)?;
    let (value, name) = (value.unwrap_or_default(), name.unwrap_or_default());
    match view(&value) {
        View::Undefined => Err(error("attr got a value that is undefined")),
        View::Other => get_item(&value, &name),
        _ => Ok(name.as_str().and_then(|name| bound(&value, name)).unwrap_or_default()),
    }
}

fn center(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind("center", ["value", "width"], 1, args)?;
    let width = width.map_or(Ok(80), |width| require_width(&width))?;
    Ok(Value::from(justify(&str_of(&value.unwrap_or_default()), ' ', "center", width)))
}

fn default(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind("default", ["value", "default_value", "boolean"], 1, args)?;
    let value = value.unwrap_or_default();
    let boolean = boolean.is_some_and(|boolean| boolean.is_true());
    if value.is_undefined() || (boolean && !value.is_true()) {
        return Ok(default.unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

fn escape_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("escape", ["s"], 1, args)?;
    let value = value.unwrap_or_default();
    Ok(if value.is_safe() { value } else { Value::from_safe_string(escape(&str_of(&value))) })
}

fn require_defined(name: &str, value: &Value) -> Result<(), Error> {
    match value.is_undefined() {
        true => Err(error(format!("{name} got a value that is undefined"))),
        false => Ok(()),
    }
}

/// Python's `float(text)`.
fn parse_float(text: &str) -> Option<f64> {
    let text = strip(text, None, true, true);
    let underscores = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    let digits = text.replace('_', "");
    let unsigned = digits.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let known = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || matches!(&*unsigned, "inf" | "infinity" | "nan");
    if underscores || !known {
        return None;
    }
    digits.parse().ok()
}

/// Python's `int(text, base)`; None where it is no number, an error where it is too large a one.
fn parse_int(text: &str, base: u32) -> Option<Value> {
    let text = strip(text, None, true, true);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, of)| {
        (base == *of || base == 0) && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    });
    let (digits, base) = match (prefixed, base) {
        (Some((_, of)), _) => (digits[2..].strip_prefix('_').unwrap_or(&digits[2..]), of),
        (None, 0) if digits.starts_with('0') && digits.trim_matches(['0', '_']) != "" => return None,
        (None, 0) => (digits, 10),
        (None, base) => (digits, base),
    };
    if digits.is_empty() || digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let digits = digits.replace('_', "");
    if !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    match i128::from_str_radix(&digits, base) {
        Ok(number) => Some(int(if negative { -number } else { number })),
        Err(_) if base == 10 => {
            let digits = digits.trim_start_matches('0');
            Some(Value::from_object(Wide(format!("{}{digits}", if negative { "-" } else { "" }))))
        }
        Err(_) => None,
    }
}

fn float(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind("float", ["value", "default"], 1, args)?;
    let value = value.unwrap_or_default();
    require_defined("float", &value)?;
    let number = match view(&value) {
        View::Str(text) => parse_float(text),
        View::Wide => parse_float(&value.to_string()),
        _ => as_float(&value),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn truncated(number: f64) -> Option<Value> {
    (number.abs() < 1e38).then(|| int(number.trunc() as i128))
}

fn int_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind("int", ["value", "default", "base"], 1, args)?;
    let value = value.unwrap_or_default();
    require_defined("int", &value)?;
    let base = base.map_or(Some(10), |base| index(&base).and_then(|base| u32::try_from(base).ok()));
    let base =
        base.filter(|base| *base == 0 || (2..=36).contains(base)).ok_or_else(|| error("int got no valid base"))?;
    let number = match view(&value) {
        View::Str(text) => parse_int(text, base).or_else(|| parse_float(text).and_then(truncated)),
        View::Float(number) if number.is_nan() => None,
        View::Float(number) => Some(truncated(number).ok_or_else(|| error("int got a number that is too large"))?),
        View::Wide => Some(value.clone()),
        _ => index(&value).map(int),
    };
    Ok(number.or(default).unwrap_or_else(|| Value::from(0)))
}

fn format(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let split = keywords(args);
    let (text, positional) = split.positional.split_first().ok_or_else(|| error("format needs a text"))?;
    let values = match (positional.is_empty(), split.keyword.is_empty()) {
        (false, false) => return Err(error("format takes arguments by position or by name, not both")),
        (true, false) => dict(split.keyword.into_iter().map(|(name, value)| (Value::from(name), value)).collect()),
        _ => tuple(positional.to_vec()),
    };
    format_percent(&str_of(text), &values).map(Value::from)
}

fn indent(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind("indent", ["s", "width", "first", "blank"], 1, args)?;
    let indention = match width {
        None => " ".repeat(4),
        Some(width) => match view(&width) {
            View::Str(text) => text.to_string(),
            _ => " ".repeat(require_width(&width)?),
        },
    };
    let is_set = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let text = add(&value.unwrap_or_default(), &Value::from("\n"))?;
    let lines = split_lines(text.as_str().unwrap_or_default(), false);
    let blank = is_set(blank);
    let mut out = if is_set(first) { indention.clone() } else { String::new() };
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn replace_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind("replace", ["s", "old", "new", "count"], 3, args)?;
    let [value, old, new] = [value, old, new].map(|value| str_of(&value.unwrap_or_default()));
    replace(&value, &old, &new, given(count).as_ref()).map(Value::from)
}

fn round(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind("round", ["value", "precision", "method"], 1, args)?;
    let value = value.unwrap_or_default();
    let precision = precision.map_or(Some(0), |precision| index(&precision));
    let precision = precision.and_then(|digits| i32::try_from(digits).ok()).filter(|digits| digits.abs() < 300);
    let precision = precision.ok_or_else(|| error("round takes a whole number of digits"))?;
    let method = method.map_or_else(|| "common".to_string(), |method| str_of(&method));
    let number = as_float(&value).ok_or_else(|| error(format!("round got a value of type {}", type_name(&value))))?;
    match (&*method, index(&value)) {
        ("common", Some(number)) => Ok(round_int(number, precision)),
        ("common", None) => Ok(Value::from(round_float(number, precision))),
        ("ceil" | "floor", whole) => {
            let scaled = match (whole, precision) {
                (Some(whole), 0..) => {
                    arithmetic("*", &int(whole), &arithmetic("**", &int(10), &int(precision.into()))?)?
                }
                _ => Value::from(number * 10f64.powi(precision)),
            };
            let scaled = as_float(&scaled).unwrap_or(f64::NAN);
            let moved = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
            if !moved.is_finite() {
                return Err(error("round cannot convert this number"));
            }
            Ok(Value::from(moved / 10f64.powi(precision)))
        }
        _ => Err(error("method must be common, ceil or floor")),
    }
}

fn round_int(number: i128, precision: i32) -> Value {
    let Some(unit) = (precision < 0).then(|| 10i128.checked_pow(precision.unsigned_abs())).flatten() else {
        return int(if precision < 0 { 0 } else { number });
    };
    let (low, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = rest * 2 > unit || (rest * 2 == unit && low % 2 != 0);
    int((low + i128::from(up)) * unit)
}

/// Half to even on the exact value of the number, as Rust writes digits.
fn round_float(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision) {
        _ if !number.is_finite() => number,
        Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
        Err(_) => {
            let unit = 10f64.powi(-precision);
            (number / unit).round_ties_even() * unit
        }
    }
}

fn string(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("string", ["s"], 1, args)?;
    let value = value.unwrap_or_default();
    Ok(if value.as_str().is_some() { value } else { Value::from(str_of(&value)) })
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        if "-({[<".contains(c) || super::methods::is_space(c) {
            starts = true;
            out.push(c);
        } else if starts {
            starts = false;
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
    }
    out
}

fn trim(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind("trim", ["value", "chars"], 1, args)?;
    let chars = given(chars);
    if let Some(chars) = chars.as_ref().filter(|chars| chars.as_str().is_none()) {
        return Err(error(format!("trim takes str, not {}", type_name(chars))));
    }
    let value = str_of(&value.unwrap_or_default());
    Ok(Value::from(strip(&value, chars.as_ref().and_then(Value::as_str), true, true)))
}

fn truncate(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["s", "length", "killwords", "end", "leeway"];
    let [value, size, killwords, end, leeway] = bind("truncate", names, 1, args)?;
    let value = value.unwrap_or_default();
    let number = |value: Option<Value>, default: i128| match given(value) {
        None => Ok(default),
        Some(value) => index(&value).ok_or_else(|| error("truncate takes whole numbers")),
    };
    let (size, leeway) = (number(size, 255)?, number(leeway, 5)?);
    let end = end.map_or_else(|| "...".to_string(), |end| str_of(&end));
    let keep = size - end.chars().count() as i128;
    if keep < 0 || leeway < 0 {
        return Err(error("truncate got a length that is shorter than its end"));
    }
    if length(&value)? as i128 <= size + leeway {
        return Ok(value);
    }
    let Some(text) = value.as_str() else { return Err(error("truncate takes a text")) };
    let kept: String = text.chars().take(keep as usize).collect();
    let kept = match killwords.is_some_and(|killwords| killwords.is_true()) {
        true => &*kept,
        false => kept.rsplit_once(' ').map_or(&*kept, |(kept, _)| kept),
    };
    Ok(Value::from(format!("{kept}{end}")))
}

fn quote(value: &Value, in_query: bool) -> String {
    let mut out = String::new();
    for byte in str_of(value).bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte as char),
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn urlencode(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("urlencode", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    let pairs: Vec<(Value, Value)> = match view(&value) {
        View::Dict(dict) => dict.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        View::List(items) | View::Tuple(items) => items
            .iter()
            .map(|item| match iterate(item)?.as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(error("urlencode takes pairs")),
            })
            .collect::<Result<_, Error>>()?,
        _ => return Ok(Value::from(quote(&value, false))),
    };
    let pairs = pairs.iter().map(|(key, value)| format!("{}={}", quote(key, true), quote(value, true)));
    Ok(Value::from(pairs.collect::<Vec<_>>().join("&")))
}

fn wordcount(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("wordcount", ["s"], 1, args)?;
    let value = str_of(&value.unwrap_or_default());
    let words = value.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}
