//! `str.format`, and the fields of its format strings.

use minijinja::value::Value;
use minijinja::Error;

use super::arguments::Split;
use super::operators::{as_float, get_item};
use super::text::{float_repr, repr_of, str_of, with_exponent};
use super::value::{index, type_name, view, View};
use super::{error, MAX_WIDTH};

pub struct Float {
    pub kind: char, // of "eEfFgG"
    pub precision: usize,
    pub alternate: bool,
}

/// The digits of `number` as C's printf writes them, with a sign where it is negative.
pub fn float_digits(number: f64, form: Float) -> String {
    let text = if number.is_nan() {
        "nan".to_string()
    } else if number.is_infinite() {
        if number > 0.0 { "inf" } else { "-inf" }.to_string()
    } else {
        match form.kind.to_ascii_lowercase() {
            'f' => with_point(format!("{number:.*}", form.precision), form.alternate),
            'e' => scientific(number, form.precision, form.alternate),
            _ => general(number, form.precision.max(1), form.alternate),
        }
    };
    if form.kind.is_ascii_uppercase() {
        text.to_ascii_uppercase()
    } else {
        text
    }
}

fn with_point(text: String, alternate: bool) -> String {
    if alternate && !text.contains('.') {
        text + "."
    } else {
        text
    }
}

fn scientific(number: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{number:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    with_exponent(&with_point(mantissa.to_string(), alternate), exponent)
}

fn general(number: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{number:.*e}", precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i64 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| match alternate {
        true => with_point(digits.to_string(), true),
        false if digits.contains('.') => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => digits.to_string(),
    };
    if power < -4 || power >= precision as i64 {
        with_exponent(&trimmed(mantissa), exponent)
    } else {
        trimmed(&format!("{number:.*}", (precision as i64 - 1 - power) as usize))
    }
}

pub fn pad(text: &str, fill: char, align: char, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let (before, after) = match align {
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    let fill = |count: usize| String::from_iter(std::iter::repeat_n(fill, count));
    format!("{}{text}{}", fill(before), fill(after))
}

/// A number with digits grouped by thousands, padded after its sign.
pub fn group(sign: &str, digits: &str, separator: Option<char>, fill: char, width: usize) -> String {
    let whole = digits.len() - digits.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (mut whole, rest) = (digits[..whole].to_string(), &digits[whole..]);
    let grouped = |whole: &str| match separator {
        None => whole.to_string(),
        Some(separator) => {
            let reversed: Vec<char> = whole.chars().rev().collect();
            let groups: Vec<String> = reversed.chunks(3).map(|group| group.iter().collect()).collect();
            groups.join(&separator.to_string()).chars().rev().collect()
        }
    };
    let size = |whole: &str| sign.len() + grouped(whole).len() + rest.len();
    if fill == '0' {
        while size(&whole) < width {
            whole.insert(0, '0');
        }
    }
    format!("{sign}{}{rest}", grouped(&whole))
}

#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    separator: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn read_spec(text: &str) -> Result<Spec, Error> {
    let invalid = || error(format!("invalid format specifier '{text}'"));
    let mut chars: &[char] = &text.chars().collect::<Vec<char>>();
    let mut spec = Spec::default();
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>=^".contains(*c));
    if is_align(chars.get(1)) {
        (spec.fill, spec.align) = (Some(chars[0]), Some(chars[1]));
        chars = &chars[2..];
    } else if is_align(chars.first()) {
        spec.align = Some(chars[0]);
        chars = &chars[1..];
    }
    let mut take = |wanted: &str| {
        let found = chars.first().copied().filter(|c| wanted.contains(*c));
        chars = &chars[usize::from(found.is_some())..];
        found
    };
    spec.sign = take("+- ");
    spec.alternate = take("#").is_some();
    spec.zero = take("0").is_some();
    let number = |take: &mut dyn FnMut(&str) -> Option<char>| {
        let mut digits = String::new();
        while let Some(digit) = take("0123456789") {
            digits.push(digit);
        }
        digits
    };
    let width = number(&mut take);
    spec.separator = take(",_");
    let precision = if take(".").is_some() { Some(number(&mut take)) } else { None };
    spec.kind = take("bcdeEfFgGnosxX%");
    let size = |digits: &str| digits.parse().ok().filter(|size| *size <= MAX_WIDTH).ok_or_else(invalid);
    if !width.is_empty() {
        spec.width = size(&width)?;
    }
    spec.precision = precision.map(|digits| size(&digits)).transpose()?;
    if chars.is_empty() {
        Ok(spec)
    } else {
        Err(invalid())
    }
}

fn format_value(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return Ok(str_of(value));
    }
    let form = read_spec(spec)?;
    let digits = match view(value) {
        View::Str(text) if matches!(form.kind, None | Some('s')) && form.sign.is_none() && form.align != Some('=') => {
            let text: String = text.chars().take(form.precision.unwrap_or(usize::MAX)).collect();
            let fill = form.fill.unwrap_or(if form.zero { '0' } else { ' ' });
            return Ok(pad(&text, fill, form.align.unwrap_or('<'), form.width));
        }
        View::Int(_) | View::Bool(_) | View::Float(_) => digits_of(value, &form),
        View::Wide if matches!(form.kind, None | Some('d')) => Some(value.to_string()),
        _ => None,
    };
    let digits = digits.ok_or_else(|| error(format!("'{}' cannot be written as '{spec}'", type_name(value))))?;
    let (sign, digits) = match (digits.strip_prefix('-'), form.sign) {
        (Some(digits), _) => ("-", digits),
        (None, Some('+')) => ("+", digits.as_str()),
        (None, Some(' ')) => (" ", digits.as_str()),
        (None, _) => ("", digits.as_str()),
    };
    let inner = form.align == Some('=') || (form.zero && form.align.is_none());
    let fill = form.fill.unwrap_or(if form.zero { '0' } else { ' ' });
    if inner && fill == '0' {
        return Ok(group(sign, digits, form.separator, '0', form.width));
    }
    let text = group("", digits, form.separator, ' ', 0);
    Ok(match inner {
        true => format!("{sign}{}", pad(&text, fill, '>', form.width.saturating_sub(sign.len()))),
        false => pad(&format!("{sign}{text}"), fill, form.align.unwrap_or('>'), form.width),
    })
}

fn digits_of(value: &Value, form: &Spec) -> Option<String> {
    let float = |kind: char, precision: usize| {
        let form = Float { kind, precision, alternate: form.alternate };
        as_float(value).map(|number| float_digits(number, form))
    };
    match (form.kind, index(value)) {
        (None | Some('d' | 'n'), Some(number)) if form.precision.is_none() => Some(number.to_string()),
        (Some(kind @ ('x' | 'X' | 'o' | 'b')), Some(number)) if form.precision.is_none() => {
            let sign = if number < 0 { "-" } else { "" };
            let number = number.unsigned_abs();
            let (prefix, digits) = match kind {
                'x' => ("0x", format!("{number:x}")),
                'X' => ("0X", format!("{number:X}")),
                'o' => ("0o", format!("{number:o}")),
                _ => ("0b", format!("{number:b}")),
            };
            Some(format!("{sign}{}{digits}", if form.alternate { prefix } else { "" }))
        }
        (Some('c'), Some(code)) => u32::try_from(code).ok().and_then(char::from_u32).map(String::from),
        (Some('%'), _) => {
            let form = Float { kind: 'f', precision: form.precision.unwrap_or(6), alternate: form.alternate };
            as_float(value).map(|number| float_digits(number * 100.0, form) + "%")
        }
        (Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')), _) => float(kind, form.precision.unwrap_or(6)),
        (None, None) => match form.precision {
            None => as_float(value).map(float_repr),
            Some(precision) => float('g', precision).map(|text| with_fraction(text, precision)),
        },
        _ => None,
    }
}

/// Without a type a float keeps a digit after its point.
fn with_fraction(text: String, precision: usize) -> String {
    let whole = text.trim_start_matches('-').len();
    if text.contains(['.', 'e', 'n']) || whole >= precision {
        text
    } else {
        text + ".0"
    }
}

pub fn format(text: &str, args: &Split) -> Result<String, Error> {
    Fields { args, next: 0, nested: 0 }.fill(text)
}

struct Fields<'a> {
    args: &'a Split<'a>,
    next: usize,
    nested: usize,
}

impl Fields<'_> {
    fn fill(&mut self, text: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            let end = if brace == "{" { closing(rest, 1, ['{', '}']) } else { None };
            let end = end.ok_or_else(|| error(format!("Single '{brace}' encountered in format string")))?;
            out.push_str(&self.field(&rest[..end])?);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str) -> Result<String, Error> {
        let (head, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = head.split_once('!').map_or((head, None), |(name, kind)| (name, Some(kind)));
        let value = self.value(name)?;
        self.nested += 1;
        if self.nested > 2 {
            return Err(error("Max string recursion exceeded"));
        }
        let spec = self.fill(spec)?;
        self.nested -= 1;
        match conversion {
            None => format_value(&value, &spec),
            Some("s") => format_value(&Value::from(str_of(&value)), &spec),
            Some("r") => format_value(&Value::from(repr_of(&value)), &spec),
            Some(other) => Err(error(format!("Unknown conversion specifier {other}"))),
        }
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(end);
        let position = if first.is_empty() { Some(self.next) } else { first.parse().ok() };
        self.next += usize::from(first.is_empty());
        let mut value = match position {
            Some(at) => self.args.positional.get(at).cloned(),
            None => self.args.keyword.iter().find(|(known, _)| known == first).map(|(_, value)| value.clone()),
        }
        .ok_or_else(|| error(format!("the format string has no value for {{{name}}}")))?;
        while !path.is_empty() {
            let (key, rest) = if let Some(inner) = path.strip_prefix('[') {
                inner.split_once(']').ok_or_else(|| error("Missing ']' in format string"))?
            } else {
                let inner = &path[1..];
                inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()))
            };
            let at = key.parse::<i64>().map(Value::from).unwrap_or_else(|_| Value::from(key));
            value = get_item(&value, &at)?;
            path = rest;
        }
        Ok(value)
    }
}

/// Where the bracket is closed, `open` of which are open before the text.
pub fn closing(text: &str, mut open: i32, [opens, closes]: [char; 2]) -> Option<usize> {
    text.char_indices().find_map(|(at, c)| {
        open += i32::from(c == opens) - i32::from(c == closes);
        (open == 0).then_some(at)
    })
}
