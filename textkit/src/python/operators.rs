//! Python's operators, which the compiled template calls as filters under the names below. No template can write these
//! names itself.

use std::cmp::Ordering;

use minijinja::machinery::Instruction;
use minijinja::value::Value;
use minijinja::{Environment, Error, HtmlEscape};

use super::objects::{Bound, Range};
use super::percent::format_percent;
use super::text::str_of;
use super::value::{index, is_lazy, iterate, list, require_hashable, tuple, type_name, view, View};
use super::{error, methods};

/// The filter that does what the engine's instruction would, with the same operands in the same order.
pub fn operator(instruction: &Instruction<'_>) -> Option<(&'static str, u16)> {
    Some(match instruction {
        Instruction::Add => ("+", 2),
        Instruction::Sub => ("-", 2),
        Instruction::Mul => ("*", 2),
        Instruction::Div => ("/", 2),
        Instruction::IntDiv => ("//", 2),
        Instruction::Rem => ("%", 2),
        Instruction::Pow => ("**", 2),
        Instruction::Neg => ("-x", 1),
        Instruction::Lt => ("<", 2),
        Instruction::Lte => ("<=", 2),
        Instruction::Gt => (">", 2),
        Instruction::Gte => (">=", 2),
        Instruction::In => ("in", 2),
        Instruction::StringConcat => ("~", 2),
        Instruction::GetItem => ("[]", 2),
        Instruction::Slice => ("[:]", 4),
        Instruction::GetAttr(name) => (methods::attribute_filter(name)?, 1),
        _ => return None,
    })
}

/// The filter that checks the value that a loop iterates over.
pub const ITERABLE: &str = "for";

pub fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("+", add);
    environment.add_filter("-", |a: &Value, b: &Value| arithmetic("-", a, b));
    environment.add_filter("*", multiply);
    environment.add_filter("/", |a: &Value, b: &Value| arithmetic("/", a, b));
    environment.add_filter("//", |a: &Value, b: &Value| arithmetic("//", a, b));
    environment.add_filter("%", remainder);
    environment.add_filter("**", |a: &Value, b: &Value| arithmetic("**", a, b));
    environment.add_filter("-x", negate);
    environment.add_filter("<", |a: &Value, b: &Value| compare("<", a, b));
    environment.add_filter("<=", |a: &Value, b: &Value| compare("<=", a, b));
    environment.add_filter(">", |a: &Value, b: &Value| compare(">", a, b));
    environment.add_filter(">=", |a: &Value, b: &Value| compare(">=", a, b));
    environment.add_filter("in", |item: &Value, container: &Value| contains(container, item));
    environment.add_filter("~", |a: &Value, b: &Value| str_of(a) + &str_of(b));
    environment.add_filter("[]", get_item);
    environment.add_filter("[:]", slice);
    environment.add_filter(ITERABLE, iterable);
    for &(filter, name) in methods::ATTRIBUTES {
        environment.add_filter(filter, move |value: &Value| get_method(value, name));
    }
}

/// Checks the value after `for`: the engine would accept None, too. A text becomes the list of its characters, because
/// the engine does not tell a loop how many a text has, and `loop.last` needs that.
fn iterable(value: &Value) -> Result<Value, Error> {
    match view(value) {
        View::None | View::Bool(_) | View::Int(_) | View::Wide | View::Float(_) => {
            Err(error(format!("'{}' object is not iterable", type_name(value))))
        }
        View::Str(_) => iterate(value).map(list),
        _ => Ok(value.clone()),
    }
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    match (view(a), view(b)) {
        (View::Undefined, _) | (_, View::Undefined) => error(format!("{operator} got a value that is undefined")),
        (View::Wide, _) | (_, View::Wide) => error(format!("{operator} got a whole number of more than 38 digits")),
        _ => error(format!("unsupported operand types for {operator}: '{}' and '{}'", type_name(a), type_name(b))),
    }
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (view(a), view(b)) {
        (View::Str(x), View::Str(y)) => Ok(concat(x, a.is_safe(), y, b.is_safe())),
        (View::List(x), View::List(y)) => Ok(list([x, y].concat())),
        (View::Tuple(x), View::Tuple(y)) => Ok(tuple([x, y].concat())),
        _ => arithmetic("+", a, b),
    }
}

/// Text that is marked safe escapes any text that is added to it.
fn concat(x: &str, x_is_safe: bool, y: &str, y_is_safe: bool) -> Value {
    match (x_is_safe, y_is_safe) {
        (false, false) => Value::from([x, y].concat()),
        (true, true) => Value::from_safe_string([x, y].concat()),
        (true, false) => Value::from_safe_string([x, &escape(y)].concat()),
        (false, true) => Value::from_safe_string([&escape(x), y].concat()),
    }
}

pub fn escape(text: &str) -> String {
    HtmlEscape(text).to_string().replace("&#x27;", "&#39;").replace("&#x2f;", "/").replace("&quot;", "&#34;")
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    let (sequence, times) = match (index(a), index(b)) {
        (None, Some(times)) => (a, times),
        (Some(times), None) => (b, times),
        _ => return arithmetic("*", a, b),
    };
    let times = usize::try_from(times.max(0)).map_err(|_| error("* repeats too often"))?;
    let fits = |length: usize| match length.checked_mul(times) {
        Some(0..=MAX_REPEATED) => Ok(()),
        _ => Err(error("* repeats too often")),
    };
    match view(sequence) {
        View::Str(text) => fits(text.len()).map(|()| Value::from(text.repeat(times))),
        View::List(items) => fits(items.len()).map(|()| list(repeated(items, times))),
        View::Tuple(items) => fits(items.len()).map(|()| tuple(repeated(items, times))),
        _ => arithmetic("*", a, b),
    }
}

fn repeated(items: &[Value], times: usize) -> Vec<Value> {
    (0..times).flat_map(|_| items.iter().cloned()).collect()
}

const MAX_REPEATED: usize = 1 << 32;

fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    match view(a) {
        View::Str(format) => format_percent(format, b).map(Value::from),
        _ => arithmetic("%", a, b),
    }
}

fn negate(value: &Value) -> Result<Value, Error> {
    match (view(value), index(value)) {
        (View::Float(number), _) => Ok(Value::from(-number)),
        (_, Some(number)) => Ok(int(-number)),
        _ => Err(error(format!("bad operand type for unary -: '{}'", type_name(value)))),
    }
}

pub fn int(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

enum Numbers {
    Ints(i128, i128),
    Floats(f64, f64),
}

pub fn as_float(value: &Value) -> Option<f64> {
    match view(value) {
        View::Float(number) => Some(number),
        _ => index(value).map(|number| number as f64),
    }
}

fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    match (index(a), index(b)) {
        (Some(x), Some(y)) => Some(Numbers::Ints(x, y)),
        _ => Some(Numbers::Floats(as_float(a)?, as_float(b)?)),
    }
}

pub fn arithmetic(operator: &'static str, a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers(a, b).ok_or_else(|| unsupported(operator, a, b))? {
        Numbers::Ints(x, y) => ints(operator, x, y),
        Numbers::Floats(x, y) => floats(operator, x, y).map(Value::from),
    }
}

fn ints(operator: &str, x: i128, y: i128) -> Result<Value, Error> {
    let result = match operator {
        "+" => x.checked_add(y),
        "-" => x.checked_sub(y),
        "*" => x.checked_mul(y),
        "**" if y >= 0 => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        "/" | "**" => return floats(operator, x as f64, y as f64).map(Value::from),
        _ if y == 0 => return Err(error(format!("{operator} by zero"))),
        "//" => x.checked_div_euclid(y).map(|quotient| quotient - i128::from(y < 0 && x.rem_euclid(y) != 0)),
        _ => Some(floor_remainder(x, y)),
    };
    result.map(int).ok_or_else(|| error(format!("{operator} gives a whole number of more than 38 digits")))
}

fn floor_remainder(x: i128, y: i128) -> i128 {
    let remainder = x.checked_rem(y).unwrap_or(0);
    if remainder != 0 && (remainder < 0) != (y < 0) {
        remainder + y
    } else {
        remainder
    }
}

fn floats(operator: &str, x: f64, y: f64) -> Result<f64, Error> {
    match operator {
        "+" => Ok(x + y),
        "-" => Ok(x - y),
        "*" => Ok(x * y),
        "**" => power(x, y),
        _ if y == 0.0 => Err(error(format!("{operator} by zero"))),
        "/" => Ok(x / y),
        "//" => Ok(floor_division(x, y).0),
        _ => Ok(floor_division(x, y).1),
    }
}

fn power(x: f64, y: f64) -> Result<f64, Error> {
    let result = x.powf(y);
    if x == 0.0 && y < 0.0 {
        Err(error("zero to a negative power"))
    } else if result.is_nan() && !x.is_nan() && !y.is_nan() {
        Err(error("** gives a complex number"))
    } else if result.is_infinite() && x.is_finite() && y.is_finite() {
        Err(error("the result of ** is too large"))
    } else {
        Ok(result)
    }
}

/// Quotient and remainder as Python's divmod has them.
fn floor_division(x: f64, y: f64) -> (f64, f64) {
    let mut remainder = x % y;
    let mut quotient = (x - remainder) / y;
    if remainder == 0.0 {
        remainder = 0f64.copysign(y);
    } else if (remainder < 0.0) != (y < 0.0) {
        remainder += y;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0f64.copysign(x / y), remainder);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, remainder)
}

/// None: the two have an order with one another, but these (NaN) have not.
pub fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    match (view(a), view(b)) {
        (View::Str(x), View::Str(y)) => Ok(Some(x.cmp(y))),
        (View::List(x), View::List(y)) | (View::Tuple(x), View::Tuple(y)) => {
            match x.iter().zip(y).find(|(x, y)| x != y) {
                Some((x, y)) => order(operator, x, y),
                None => Ok(Some(x.len().cmp(&y.len()))),
            }
        }
        _ => match numbers(a, b) {
            Some(Numbers::Ints(x, y)) => Ok(Some(x.cmp(&y))),
            Some(Numbers::Floats(x, y)) => Ok(x.partial_cmp(&y)),
            None => Err(unsupported(operator, a, b)),
        },
    }
}

pub fn compare(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    let order = order(operator, a, b)?;
    Ok(order.is_some_and(|order| match operator {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }))
}

pub fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match (view(container), view(item)) {
        (View::Str(text), View::Str(part)) => Ok(text.contains(part)),
        (View::Str(_), _) => {
            Err(error(format!("'in <string>' requires string as left operand, not {}", type_name(item))))
        }
        (View::Dict(dict), _) => require_hashable(item).map(|()| dict.contains_key(item)),
        (View::List(items) | View::Tuple(items), _) => Ok(items.contains(item)),
        _ => Ok(iterate(container)?.contains(item)),
    }
}

/// A key that is not there may be the name of a method: so it is in Jinja2.
pub fn get_item(value: &Value, key: &Value) -> Result<Value, Error> {
    let at = |length: usize| {
        let at = index(key)?;
        let at = if at < 0 { at + length as i128 } else { at };
        usize::try_from(at).ok().filter(|at| *at < length)
    };
    let found = match view(value) {
        View::Undefined => return Err(error(format!("'{}' of a value that is undefined", str_of(key)))),
        View::Dict(dict) => dict.get(key).cloned(),
        View::List(items) => at(items.len()).map(|at| items[at].clone()),
        View::Tuple(_) if key.as_str().is_some() => value.get_item(key).ok().filter(|value| !value.is_undefined()),
        View::Tuple(items) => at(items.len()).map(|at| items[at].clone()),
        View::Range(range) => at(range.len()).map(|at| range.get(at)),
        View::Str(text) => {
            index(key).and_then(|_| at(text.chars().count())).and_then(|at| text.chars().nth(at)).map(Value::from)
        }
        View::Other if !is_lazy(value) => Some(value.get_item(key)?),
        _ => None,
    };
    Ok(found.or_else(|| key.as_str().and_then(|name| bound(value, name))).unwrap_or_default())
}

pub fn bound(value: &Value, name: &str) -> Option<Value> {
    let name = methods::find(value, name)?;
    Some(Value::from_object(Bound { value: value.clone(), name }))
}

/// `value.name` where `name` is that of a method of some type: there it hides the key of a dict.
fn get_method(value: &Value, name: &'static str) -> Result<Value, Error> {
    match view(value) {
        View::Undefined => Err(error(format!("'{name}' of a value that is undefined"))),
        _ => match bound(value, name) {
            Some(method) => Ok(method),
            None if methods::hides_key(value, name) => Ok(Value::UNDEFINED),
            None => value.get_attr(name),
        },
    }
}

fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bounds = [start, stop, step].map(|bound| if bound.is_none() { Some(None) } else { index(bound).map(Some) });
    let [Some(start), Some(stop), Some(step)] = bounds else {
        return Err(error("slice indices must be integers or None"));
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(error("slice step cannot be zero"));
    }
    let pick = |length: usize| slice_indices(length as i128, start, stop, step);
    match view(value) {
        View::Str(text) if text.is_ascii() => {
            Ok(Value::from(pick(text.len()).map(|at| text.as_bytes()[at] as char).collect::<String>()))
        }
        View::Str(text) => {
            let chars: Vec<char> = text.chars().collect();
            Ok(Value::from(pick(chars.len()).map(|at| chars[at]).collect::<String>()))
        }
        View::List(items) => Ok(list(pick(items.len()).map(|at| items[at].clone()).collect())),
        View::Tuple(items) => Ok(tuple(pick(items.len()).map(|at| items[at].clone()).collect())),
        View::Range(range) => Ok(range_slice(range, pick(range.len()).collect())),
        View::Undefined => Err(error("a slice of a value that is undefined")),
        _ => Err(error(format!("a slice of '{}' object", type_name(value)))),
    }
}

fn range_slice(range: &Range, picked: Vec<usize>) -> Value {
    list(picked.into_iter().map(|at| range.get(at)).collect())
}

pub fn slice_indices(length: i128, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let within = |at: i128| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high);
    let (first, end) = if step > 0 { (low, high) } else { (high, low) };
    let start = start.map_or(first, within);
    let stop = stop.map_or(end, within);
    let ahead = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step)).take_while(ahead).map(|at| at as usize)
}
