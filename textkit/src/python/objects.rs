//! Python's objects that the engine lacks.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value};
use minijinja::{Error, State};

use super::arguments::{bind, keywords, Split};
use super::text::write_repr;
use super::value::{index, iterate, length, list, tuple, view, Dict, View};
use super::{error, methods};

/// A whole number of more digits than are computed with. It can be printed.
#[derive(Debug)]
pub struct Wide(pub String);

impl Object for Wide {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lazy iterable of Python's: it can be iterated once, and has neither a length nor items.
#[derive(Debug)]
pub struct Generator {
    pub name: &'static str,
    items: Mutex<std::vec::IntoIter<Value>>,
}

struct Rest(Arc<Generator>);

impl Iterator for Rest {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.items.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.items.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Rest(self.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} object>", self.name)
    }
}

pub fn generator(items: Vec<Value>) -> Value {
    lazy("generator", items)
}

pub fn lazy(name: &'static str, items: Vec<Value>) -> Value {
    Value::from_object(Generator { name, items: Mutex::new(items.into_iter()) })
}

/// `dict.keys()`, `.values()` and `.items()`.
#[derive(Debug)]
pub struct DictView {
    pub name: &'static str,
    items: Vec<Value>,
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        write_repr(f, &list(self.items.clone()))?;
        f.write_str(")")
    }
}

pub fn dict_view(name: &'static str, dict: &Dict) -> Value {
    let items = match name {
        "dict_keys" => dict.keys().cloned().collect(),
        "dict_values" => dict.values().cloned().collect(),
        _ => dict.iter().map(|(key, value)| tuple(vec![key.clone(), value.clone()])).collect(),
    };
    Value::from_object(DictView { name, items })
}

/// A pair that `groupby` makes.
#[derive(Debug)]
pub struct Group(pub [Value; 2]);

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some("grouper") => Some(self.0[0].clone()),
            Some("list") => Some(self.0[1].clone()),
            Some(_) => None,
            None => self.0.get(key.as_usize()?).cloned(),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

#[derive(Clone, Debug)]
pub struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

/// As many as Jinja2's sandbox allows.
const MAX_RANGE: usize = 100_000;

impl Range {
    pub fn len(&self) -> usize {
        let (start, stop, step) = (i128::from(self.start), i128::from(self.stop), i128::from(self.step));
        let span = if step > 0 { stop - start } else { start - stop };
        usize::try_from((span + step.abs() - 1) / step.abs()).unwrap_or(0)
    }

    pub fn get(&self, at: usize) -> Value {
        Value::from(self.start + at as i64 * self.step)
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        key.as_usize().filter(|at| *at < self.len()).map(|at| self.get(at))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

pub fn range(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let numbers = args.iter().map(|value| {
        let number = index(value).ok_or_else(|| error("range() takes whole numbers"))?;
        i64::try_from(number).map_err(|_| error("range() got a number that is too large"))
    });
    let (start, stop, step) = match numbers.collect::<Result<Vec<i64>, Error>>()?[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        [_, _, _] => return Err(error("range() got a step of zero")),
        _ => return Err(error("range() takes one to three numbers")),
    };
    let range = Range { start, stop, step };
    match range.len() {
        0..=MAX_RANGE => Ok(Value::from_object(range)),
        _ => Err(error(format!("range() of more than {MAX_RANGE} numbers"))),
    }
}

pub fn dict(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let Split { positional, keyword } = keywords(args);
    let mut dict = match positional {
        [] => Dict::new(),
        [from] => match view(from) {
            View::Dict(dict) => dict.clone(),
            _ => pairs(from)?,
        },
        _ => return Err(error("dict expected at most 1 argument")),
    };
    dict.extend(keyword.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(Value::from_object(dict))
}

fn pairs(from: &Value) -> Result<Dict, Error> {
    let pair = |item: &Value| match iterate(item)?.as_slice() {
        [key, value] => Ok((key.clone(), value.clone())),
        _ => Err(error("dict takes pairs")),
    };
    iterate(from)?.iter().map(pair).collect()
}

/// A method that is not called yet.
#[derive(Debug)]
pub struct Bound {
    pub value: Value,
    pub name: &'static str,
}

impl Object for Bound {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.value, self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of {} object>", self.name, super::value::type_name(&self.value))
    }
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed);
        (key.as_str() == Some("current")).then(|| self.items[at].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let [] = bind(method, [], 0, args)?;
        let at = self.at.load(Ordering::Relaxed);
        match method {
            "next" => {
                self.at.store((at + 1) % self.items.len(), Ordering::Relaxed);
                Ok(self.items[at].clone())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(error(format!("a cycler has no method {method}"))),
        }
    }
}

pub fn cycler(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    match args {
        [] => Err(error("cycler() takes at least one item")),
        items => Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) })),
    }
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = bind("joiner", [], 0, args)?;
        let used = self.used.swap(true, Ordering::Relaxed);
        Ok(if used { self.separator.clone() } else { Value::from("") })
    }
}

pub fn joiner(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind("joiner", ["sep"], 0, args)?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
}

/// `reversed()` of values with a length and items.
pub fn reversed(value: &Value) -> Result<Vec<Value>, Error> {
    length(value)?;
    let mut items = iterate(value)?;
    items.reverse();
    Ok(items)
}
