//! The methods of str, dict, list and tuple. Those that change a list or a dict are refused, as by Jinja2's sandbox.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

use super::arguments::{bind, given, keywords};
use super::objects::dict_view;
use super::operators::slice_indices;
use super::spec::{format, pad};
use super::text::is_printable;
use super::value::{dict, index, iterate, list, require_hashable, tuple, type_name, view, Dict, View};
use super::{error, MAX_WIDTH};

/// `value.name` of these names is looked up as below, by a filter of its own: the engine takes the key of a dict.
macro_rules! attributes {
    ($($name:literal)*) => { &[$((concat!(".", $name), $name)),*] };
}

pub const ATTRIBUTES: &[(&str, &str)] = attributes!(
    "append" "capitalize" "casefold" "center" "clear" "copy" "count" "endswith" "expandtabs" "extend" "find" "format"
    "fromkeys" "get" "index" "insert" "isalnum" "isalpha" "isascii" "isdecimal" "isdigit" "isidentifier" "islower"
    "isnumeric" "isprintable" "isspace" "istitle" "isupper" "items" "join" "keys" "ljust" "lower" "lstrip" "partition"
    "pop" "popitem" "remove" "removeprefix" "removesuffix" "replace" "reverse" "rfind" "rindex" "rjust" "rpartition"
    "rsplit" "rstrip" "setdefault" "sort" "split" "splitlines" "startswith" "strip" "swapcase" "title" "update"
    "upper" "values" "zfill"
);
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const DICT_CHANGES: [&str; 6] = ["clear", "fromkeys", "pop", "popitem", "setdefault", "update"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const LIST_CHANGES: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const NOT_OF_STR: [&str; 7] = ["copy", "fromkeys", "get", "items", "keys", "update", "values"];

pub fn attribute_filter(name: &str) -> Option<&'static str> {
    ATTRIBUTES.iter().find(|(_, known)| *known == name).map(|(filter, _)| *filter)
}

/// The method of this name that `value` has and templates may call.
pub fn find(value: &Value, name: &str) -> Option<&'static str> {
    let (_, known) = ATTRIBUTES.iter().find(|(_, known)| *known == name)?;
    let has = match view(value) {
        View::Str(_) => !NOT_OF_STR.contains(&name) && !LIST_CHANGES.contains(&name) && !DICT_CHANGES.contains(&name),
        View::Dict(_) => DICT.contains(&name),
        View::List(_) => LIST.contains(&name),
        View::Tuple(_) | View::Range(_) => name == "count" || name == "index",
        _ => false,
    };
    has.then_some(*known)
}

/// Names under which a dict has a method that changes it: no key is found under them.
pub fn hides_key(value: &Value, name: &str) -> bool {
    matches!(view(value), View::Dict(_)) && DICT_CHANGES.contains(&name)
}

pub fn call(_: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (view(value), find(value, name)) {
        (View::Str(text), Some(name)) => text_method(text, name, args),
        (View::Dict(dict), Some(name)) => dict_method(dict, name, args),
        (View::List(items) | View::Tuple(items), Some(name)) => sequence_method(value, items, name, args),
        (View::Range(_), Some(name)) => sequence_method(value, &iterate(value)?, name, args),
        (View::List(_), None) if LIST_CHANGES.contains(&name) => Err(unsafe_method(value, name)),
        (View::Dict(_), None) if DICT_CHANGES.contains(&name) => Err(unsafe_method(value, name)),
        (View::Undefined, _) => Err(error(format!("a value that is undefined has no method {name}"))),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn unsafe_method(value: &Value, name: &str) -> Error {
    error(format!("templates may not call {name} of a {}: build a new one with + instead", type_name(value)))
}

fn dict_method(items: &Dict, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "get" {
        let [key, default] = bind(name, ["key", "default"], 1, args)?;
        let key = key.unwrap_or_default();
        require_hashable(&key)?;
        return Ok(items.get(&key).cloned().or(default).unwrap_or_else(|| Value::from(())));
    }
    let [] = bind(name, [], 0, args)?;
    Ok(match name {
        "keys" => dict_view("dict_keys", items),
        "values" => dict_view("dict_values", items),
        "items" => dict_view("dict_items", items),
        _ => dict(items.clone()),
    })
}

fn sequence_method(value: &Value, items: &[Value], name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "copy" {
        let [] = bind(name, [], 0, args)?;
        return Ok(list(items.to_vec()));
    }
    let [wanted, start, stop] = bind(name, ["value", "start", "stop"], 1, args)?;
    let wanted = wanted.unwrap_or_default();
    if name == "count" {
        return Ok(Value::from(items.iter().filter(|item| **item == wanted).count()));
    }
    let mut within = slice_indices(items.len() as i128, bound(start)?, bound(stop)?, 1);
    let found = within.find(|at| items[*at] == wanted);
    found.map(Value::from).ok_or_else(|| error(format!("the value is not in the {}", type_name(value))))
}

fn bound(value: Option<Value>) -> Result<Option<i128>, Error> {
    given(value).map(|value| index(&value).ok_or_else(|| error("slice indices must be integers or None"))).transpose()
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match name {
        "lower" | "upper" | "title" | "capitalize" | "casefold" | "swapcase" => {
            let [] = bind(name, [], 0, args)?;
            Value::from(change_case(text, name))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bind(name, ["chars"], 0, args)?;
            let chars = given(chars).map(|chars| require_text(name, &chars)).transpose()?;
            Value::from(strip(text, chars.as_deref(), name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => split(text, name, args)?,
        "splitlines" => {
            let [keep] = bind(name, ["keepends"], 0, args)?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            list(split_lines(text, keep).into_iter().map(Value::from).collect())
        }
        "partition" | "rpartition" => partition(text, name, args)?,
        "removeprefix" | "removesuffix" => {
            let [part] = bind(name, ["part"], 1, args)?;
            let part = require_text(name, &part.unwrap_or_default())?;
            let left = if name == "removeprefix" { text.strip_prefix(&*part) } else { text.strip_suffix(&*part) };
            Value::from(left.unwrap_or(text))
        }
        "startswith" | "endswith" => starts_or_ends(text, name, args)?,
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args)?,
        "replace" => {
            let [old, new, count] = bind(name, ["old", "new", "count"], 2, args)?;
            let old = require_text(name, &old.unwrap_or_default())?;
            let new = require_text(name, &new.unwrap_or_default())?;
            Value::from(replace(text, &old, &new, count.as_ref())?)
        }
        "join" => {
            let [items] = bind(name, ["iterable"], 1, args)?;
            let items = iterate(&items.unwrap_or_default())?;
            let items = items.iter().map(|item| require_text(name, item)).collect::<Result<Vec<_>, _>>()?;
            Value::from(items.join(text))
        }
        "zfill" => {
            let [width] = bind(name, ["width"], 1, args)?;
            let width = require_width(&width.unwrap_or_default())?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}", pad(digits, '0', '>', width.saturating_sub(sign.len()))))
        }
        "ljust" | "rjust" | "center" => {
            let [width, fill] = bind(name, ["width", "fillchar"], 1, args)?;
            let fill = fill.map(|fill| require_text(name, &fill)).transpose()?.unwrap_or_else(|| " ".into());
            let mut chars = fill.chars();
            let (Some(fill), None) = (chars.next(), chars.next()) else {
                return Err(error("the fill character must be exactly one character long"));
            };
            Value::from(justify(text, fill, name, require_width(&width.unwrap_or_default())?))
        }
        "expandtabs" => {
            let [size] = bind(name, ["tabsize"], 0, args)?;
            Value::from(expand_tabs(text, size.map_or(Ok(8), |size| require_width(&size))?))
        }
        "format" => Value::from(format(text, &keywords(args))?),
        _ => {
            let [] = bind(name, [], 0, args)?;
            Value::from(is_of(text, name))
        }
    })
}

pub fn justify(text: &str, fill: char, name: &str, width: usize) -> String {
    match name {
        "ljust" => pad(text, fill, '<', width),
        "rjust" => pad(text, fill, '>', width),
        _ => {
            let size = text.chars().count();
            let missing = width.saturating_sub(size);
            let left = missing / 2 + (missing & width & 1);
            pad(&pad(text, fill, '>', size + left), fill, '<', width.max(size))
        }
    }
}

fn require_text(method: &str, value: &Value) -> Result<String, Error> {
    match view(value) {
        View::Str(text) => Ok(text.to_string()),
        _ => Err(error(format!("{method} takes str, not {}", type_name(value)))),
    }
}

pub fn require_width(value: &Value) -> Result<usize, Error> {
    match index(value).map(|width| usize::try_from(width.max(0))) {
        Some(Ok(width @ ..=MAX_WIDTH)) => Ok(width),
        Some(_) => Err(error("a width is too large")),
        None => Err(error(format!("a width must be a whole number, not {}", type_name(value)))),
    }
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right {
        text.trim_end_matches(goes)
    } else {
        text
    }
}

fn title_case(c: char, out: &mut String) {
    let mut upper = c.to_uppercase();
    out.extend(upper.next());
    out.extend(upper.flat_map(char::to_lowercase));
}

pub fn change_case(text: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    match name {
        "lower" => return text.to_lowercase(),
        "upper" => return text.to_uppercase(),
        "casefold" => return text.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
        "capitalize" => {
            let mut chars = text.chars();
            if let Some(first) = chars.next() {
                title_case(first, &mut out);
            }
            out.push_str(&chars.as_str().to_lowercase());
        }
        "swapcase" => {
            for c in text.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
            }
        }
        _ => {
            let mut in_word = false;
            for c in text.chars() {
                if in_word {
                    out.extend(c.to_lowercase());
                } else {
                    title_case(c, &mut out);
                }
                in_word = c.is_lowercase() || c.is_uppercase();
            }
        }
    }
    out
}

fn split(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [separator, most] = bind(name, ["sep", "maxsplit"], 0, args)?;
    let separator = given(separator).map(|separator| require_text(name, &separator)).transpose()?;
    let most = most.map(|most| index(&most).ok_or_else(|| error("maxsplit must be a whole number"))).transpose()?;
    let most = usize::try_from(most.unwrap_or(-1)).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match (separator.as_deref(), name) {
        (Some(""), _) => return Err(error("empty separator")),
        (Some(separator), "split") => text.splitn(most.saturating_add(1), separator).collect(),
        (Some(separator), _) => {
            let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        (None, _) => words(text, most, name != "split"),
    };
    Ok(list(parts.into_iter().map(Value::from).collect()))
}

/// Words between white space, from the start or from the end on: at most `most`, and what is left then.
fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let trim: fn(&str) -> &str =
        if from_end { |text| text.trim_end_matches(is_space) } else { |text| text.trim_start_matches(is_space) };
    let mut parts = Vec::new();
    let mut rest = trim(text);
    while !rest.is_empty() {
        if parts.len() == most {
            parts.push(rest);
            break;
        }
        let (word, more) = if from_end {
            let start = rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
            (&rest[start..], &rest[..start])
        } else {
            rest.split_at(rest.find(is_space).unwrap_or(rest.len()))
        };
        parts.push(word);
        rest = trim(more);
    }
    if from_end {
        parts.reverse();
    }
    parts
}

pub fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        let size =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..end + if keep { size } else { 0 }]);
        rest = &rest[end + size..];
    }
    lines
}

fn partition(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(name, ["sep"], 1, args)?;
    let separator = require_text(name, &separator.unwrap_or_default())?;
    if separator.is_empty() {
        return Err(error("empty separator"));
    }
    let parts = match name {
        "partition" => text.split_once(&*separator).map_or([text, "", ""], |(a, b)| [a, &separator, b]),
        _ => text.rsplit_once(&*separator).map_or(["", "", text], |(a, b)| [a, &separator, b]),
    };
    Ok(tuple(parts.map(Value::from).to_vec()))
}

/// The part of the text between two character positions, and the position in bytes of its start. None where they are
/// the wrong way round, which holds nothing, not even an empty text.
fn window(text: &str, start: Option<Value>, stop: Option<Value>) -> Result<Option<(usize, &str)>, Error> {
    let (start, stop) = (bound(start)?, bound(stop)?);
    if start.is_none() && stop.is_none() {
        return Ok(Some((0, text)));
    }
    let size = text.chars().count() as i128;
    let within = |at: i128| if at < 0 { at.saturating_add(size).max(0) } else { at };
    let (start, stop) = (within(start.unwrap_or(0)), within(stop.unwrap_or(size)).min(size));
    if start > stop {
        return Ok(None);
    }
    let byte = |at: i128| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((byte(start), &text[byte(start)..byte(stop)])))
}

fn starts_or_ends(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [part, start, stop] = bind(name, ["part", "start", "end"], 1, args)?;
    let part = part.unwrap_or_default();
    let parts = match view(&part) {
        View::Tuple(parts) => parts.iter().map(|part| require_text(name, part)).collect::<Result<Vec<_>, _>>()?,
        _ => vec![require_text(name, &part)?],
    };
    let Some((_, text)) = window(text, start, stop)? else { return Ok(Value::from(false)) };
    Ok(Value::from(parts.iter().any(|part| match name {
        "startswith" => text.starts_with(&**part),
        _ => text.ends_with(&**part),
    })))
}

fn search(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [part, start, stop] = bind(name, ["sub", "start", "end"], 1, args)?;
    let part = require_text(name, &part.unwrap_or_default())?;
    let window = window(text, start, stop)?;
    if name == "count" {
        return Ok(Value::from(window.map_or(0, |(_, text)| text.matches(&*part).count())));
    }
    let found = window.and_then(|(offset, text)| {
        let at = if name.starts_with('r') { text.rfind(&*part) } else { text.find(&*part) };
        at.map(|at| at + offset)
    });
    match found {
        Some(at) => Ok(Value::from(text[..at].chars().count())),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(error("substring not found")),
    }
}

pub fn replace(text: &str, old: &str, new: &str, count: Option<&Value>) -> Result<String, Error> {
    let count = match count {
        None => -1,
        Some(count) => index(count).ok_or_else(|| error("replace takes a whole number as its count"))?,
    };
    Ok(match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    })
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let missing = size - column % size;
                out.extend(std::iter::repeat_n(' ', missing));
                column += missing;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

pub fn is_of(text: &str, name: &str) -> bool {
    let every = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let is_cased = |c: char| c.is_lowercase() || c.is_uppercase();
    match name {
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isnumeric" => every(char::is_numeric),
        "isdigit" | "isdecimal" => every(|c| c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric())),
        "isspace" => every(is_space),
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(is_printable),
        "islower" => text.chars().any(is_cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(is_cased) && !text.chars().any(char::is_lowercase),
        "isidentifier" => {
            text.chars().all(|c| c == '_' || c.is_alphanumeric())
                && !text.starts_with(|c: char| c.is_numeric())
                && !text.is_empty()
        }
        _ => {
            let mut in_word = false;
            let right = text.chars().all(|c| {
                let right = !is_cased(c) || c.is_uppercase() != in_word;
                in_word = is_cased(c);
                right
            });
            right && text.chars().any(is_cased)
        }
    }
}
