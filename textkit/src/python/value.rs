//! The values of the engine as Python's types.

use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Object, Tuple, Value, ValueKind};
use minijinja::Error;

use super::error;
use super::objects::{Bound, DictView, Generator, Group, Range, Wide};

pub type Dict = IndexMap<Value, Value>;

pub enum View<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Wide, // an int of more digits than are computed with
    Float(f64),
    Str(&'a str),
    List(&'a [Value]),
    Tuple(&'a [Value]),
    Range(&'a Range),
    Dict(&'a Dict),
    Other, // functions, loops, namespaces, what is made lazily
}

pub fn view(value: &Value) -> View<'_> {
    match value.kind() {
        ValueKind::Undefined => View::Undefined,
        ValueKind::None => View::None,
        ValueKind::Bool => View::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).map_or(View::Wide, View::Int),
        ValueKind::Number => f64::try_from(value.clone()).map_or(View::Other, View::Float),
        ValueKind::String => View::Str(value.as_str().unwrap_or_default()),
        _ => object(value),
    }
}

fn object(value: &Value) -> View<'_> {
    if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
        View::List(list)
    } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
        View::Dict(dict)
    } else if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
        View::Tuple(tuple)
    } else if let Some(group) = value.downcast_object_ref::<Group>() {
        View::Tuple(&group.0)
    } else if let Some(range) = value.downcast_object_ref::<Range>() {
        View::Range(range)
    } else if value.downcast_object_ref::<Wide>().is_some() {
        View::Wide
    } else {
        View::Other
    }
}

/// The name of its type.
pub fn type_name(value: &Value) -> &'static str {
    match view(value) {
        View::Undefined => "Undefined",
        View::None => "NoneType",
        View::Bool(_) => "bool",
        View::Int(_) | View::Wide => "int",
        View::Float(_) => "float",
        View::Str(_) => "str",
        View::List(_) => "list",
        View::Tuple(_) => "tuple",
        View::Range(_) => "range",
        View::Dict(_) => "dict",
        View::Other => other_name(value),
    }
}

fn other_name(value: &Value) -> &'static str {
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        generator.name
    } else if let Some(keys) = value.downcast_object_ref::<DictView>() {
        keys.name
    } else if value.downcast_object_ref::<Bound>().is_some() {
        "method"
    } else {
        "object"
    }
}

/// The values that `for` iterates over.
pub fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    Ok(match view(value) {
        View::Undefined => Vec::new(),
        View::List(items) | View::Tuple(items) => items.to_vec(),
        View::Str(text) => text.chars().map(Value::from).collect(),
        View::Dict(dict) => dict.keys().cloned().collect(),
        View::Range(_) => value.try_iter()?.collect(),
        View::Other if is_lazy(value) => value.try_iter()?.collect(),
        _ => return Err(error(format!("'{}' object is not iterable", type_name(value)))),
    })
}

/// Generators, and the views of a dict.
pub fn is_lazy(value: &Value) -> bool {
    value.downcast_object_ref::<Generator>().is_some() || value.downcast_object_ref::<DictView>().is_some()
}

pub fn length(value: &Value) -> Result<usize, Error> {
    Ok(match view(value) {
        View::Undefined => 0,
        View::Str(text) => text.chars().count(),
        View::List(items) | View::Tuple(items) => items.len(),
        View::Dict(dict) => dict.len(),
        View::Range(range) => range.len(),
        View::Other if value.downcast_object_ref::<DictView>().is_some() => value.len().unwrap_or(0),
        _ => return Err(error(format!("object of type '{}' has no len()", type_name(value)))),
    })
}

pub fn list(items: Vec<Value>) -> Value {
    Value::from_object(items)
}

pub fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::from(items))
}

pub fn dict(items: Dict) -> Value {
    Value::from_object(items)
}

pub fn object_of<T: Object + 'static>(value: &Value) -> Option<Arc<T>> {
    value.downcast_object::<T>()
}

/// An index, as `__index__` gives it.
pub fn index(value: &Value) -> Option<i128> {
    match view(value) {
        View::Bool(value) => Some(value.into()),
        View::Int(value) => Some(value),
        _ => None,
    }
}

/// Keys of dicts and members of sets.
pub fn require_hashable(value: &Value) -> Result<(), Error> {
    match view(value) {
        View::List(_) | View::Dict(_) => Err(error(format!("unhashable type: '{}'", type_name(value)))),
        View::Tuple(items) => items.iter().try_for_each(require_hashable),
        _ => Ok(()),
    }
}
