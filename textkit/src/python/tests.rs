//! Jinja2's tests.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

use super::arguments::bind;
use super::methods::is_of;
use super::objects::Bound;
use super::operators::{arithmetic, compare, contains};
use super::text::str_of;
use super::value::{is_lazy, view, View};
use super::{has_filter, has_test, Function};

pub const TESTS: &[(&str, Function)] = &[
    ("odd", |_, args| remainder_is("odd", args, 1)),
    ("even", |_, args| remainder_is("even", args, 0)),
    ("divisibleby", divisible),
    ("defined", |_, args| is("defined", args, |value| !value.is_undefined())),
    ("undefined", |_, args| is("undefined", args, Value::is_undefined)),
    ("filter", |_, args| is("filter", args, |value| value.as_str().is_some_and(has_filter))),
    ("test", |_, args| is("test", args, |value| value.as_str().is_some_and(has_test))),
    ("none", |_, args| is("none", args, Value::is_none)),
    ("boolean", |_, args| is("boolean", args, |value| value.kind() == ValueKind::Bool)),
    ("false", |_, args| is("false", args, |value| matches!(view(value), View::Bool(false)))),
    ("true", |_, args| is("true", args, |value| matches!(view(value), View::Bool(true)))),
    ("integer", |_, args| is("integer", args, |value| matches!(view(value), View::Int(_) | View::Wide))),
    ("float", |_, args| is("float", args, |value| matches!(view(value), View::Float(_)))),
    ("lower", |_, args| is("lower", args, |value| is_of(&str_of(value), "islower"))),
    ("upper", |_, args| is("upper", args, |value| is_of(&str_of(value), "isupper"))),
    ("string", |_, args| is("string", args, |value| matches!(view(value), View::Str(_)))),
    ("mapping", |_, args| is("mapping", args, |value| matches!(view(value), View::Dict(_)))),
    ("number", |_, args| is("number", args, is_number)),
    ("sequence", |_, args| is("sequence", args, is_sequence)),
    ("iterable", |_, args| is("iterable", args, |value| is_sequence(value) || is_lazy(value))),
    ("callable", |_, args| is("callable", args, is_callable)),
    ("sameas", same),
    ("escaped", |_, args| is("escaped", args, Value::is_safe)),
    ("in", |_, args| pair("in", args, |item, container| contains(container, item))),
    ("==", |_, args| pair("==", args, |a, b| Ok(a == b))),
    ("eq", |_, args| pair("eq", args, |a, b| Ok(a == b))),
    ("equalto", |_, args| pair("equalto", args, |a, b| Ok(a == b))),
    ("!=", |_, args| pair("!=", args, |a, b| Ok(a != b))),
    ("ne", |_, args| pair("ne", args, |a, b| Ok(a != b))),
    (">", |_, args| pair(">", args, |a, b| compare(">", a, b))),
    ("gt", |_, args| pair("gt", args, |a, b| compare(">", a, b))),
    ("greaterthan", |_, args| pair("greaterthan", args, |a, b| compare(">", a, b))),
    (">=", |_, args| pair(">=", args, |a, b| compare(">=", a, b))),
    ("ge", |_, args| pair("ge", args, |a, b| compare(">=", a, b))),
    ("<", |_, args| pair("<", args, |a, b| compare("<", a, b))),
    ("lt", |_, args| pair("lt", args, |a, b| compare("<", a, b))),
    ("lessthan", |_, args| pair("lessthan", args, |a, b| compare("<", a, b))),
    ("<=", |_, args| pair("<=", args, |a, b| compare("<=", a, b))),
    ("le", |_, args| pair("le", args, |a, b| compare("<=", a, b))),
];

fn is(name: &str, args: &[Value], holds: impl Fn(&Value) -> bool) -> Result<Value, Error> {
    let [value] = bind(name, ["value"], 1, args)?;
    Ok(Value::from(holds(&value.unwrap_or_default())))
}

fn pair(name: &str, args: &[Value], holds: impl Fn(&Value, &Value) -> Result<bool, Error>) -> Result<Value, Error> {
    let [value, other] = bind(name, ["value", "other"], 2, args)?;
    holds(&value.unwrap_or_default(), &other.unwrap_or_default()).map(Value::from)
}

fn remainder_is(name: &str, args: &[Value], wanted: i64) -> Result<Value, Error> {
    let [value] = bind(name, ["value"], 1, args)?;
    let remainder = arithmetic("%", &value.unwrap_or_default(), &Value::from(2))?;
    Ok(Value::from(remainder == Value::from(wanted)))
}

fn divisible(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, by] = bind("divisibleby", ["value", "num"], 2, args)?;
    let remainder = arithmetic("%", &value.unwrap_or_default(), &by.unwrap_or_default())?;
    Ok(Value::from(remainder == Value::from(0)))
}

fn is_number(value: &Value) -> bool {
    matches!(view(value), View::Bool(_) | View::Int(_) | View::Wide | View::Float(_))
}

/// Has a length and items. Jinja2's undefined has both.
fn is_sequence(value: &Value) -> bool {
    match view(value) {
        View::Undefined | View::Str(_) | View::List(_) | View::Tuple(_) | View::Range(_) | View::Dict(_) => true,
        View::None | View::Bool(_) | View::Int(_) | View::Wide | View::Float(_) | View::Other => false,
    }
}

fn is_callable(value: &Value) -> bool {
    match view(value) {
        View::Undefined => true,
        View::Other if value.downcast_object_ref::<Bound>().is_some() => true,
        View::Other if value.kind() == ValueKind::Map => value.to_string().starts_with("<macro "),
        View::Other => !is_lazy(value),
        _ => false,
    }
}

fn same(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    pair("sameas", args, |a, b| {
        Ok(match (view(a), view(b)) {
            (View::List(a), View::List(b)) => std::ptr::eq(a, b),
            (View::Dict(a), View::Dict(b)) => std::ptr::eq(a, b),
            _ => a.kind() == b.kind() && a.is_integer() == b.is_integer() && a == b,
        })
    })
}
