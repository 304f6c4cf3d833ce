//! Jinja2's filters of sequences and mappings.

use std::cmp::Ordering;
use std::collections::HashSet;

use minijinja::value::Value;
use minijinja::{Error, State};

use super::arguments::{bind, given, keywords, Split};
use super::methods::change_case;
use super::objects::{generator, lazy, reversed, Generator, Group};
use super::operators::{add, compare, get_item};
use super::text::str_of;
use super::value::{index, iterate, length, list, object_of, require_hashable, tuple, type_name, view, View};
use super::{error, Function, MAX_WIDTH};

pub const FILTERS: &[(&str, Function)] = &[
    ("batch", batch),
    ("count", length_filter),
    ("dictsort", dictsort),
    ("first", first),
    ("groupby", groupby),
    ("items", items),
    ("join", join),
    ("last", last),
    ("length", length_filter),
    ("list", list_filter),
    ("map", map),
    ("max", |_, args| extreme("max", ">", args)),
    ("min", |_, args| extreme("min", "<", args)),
    ("reject", |state, args| select(state, "reject", false, args)),
    ("rejectattr", |state, args| select(state, "rejectattr", false, args)),
    ("reverse", reverse),
    ("select", |state, args| select(state, "select", true, args)),
    ("selectattr", |state, args| select(state, "selectattr", true, args)),
    ("slice", slice),
    ("sort", sort),
    ("sum", sum),
    ("unique", unique),
];

/// Jinja2's reading of the `attribute` of a filter: "a.b" is a path, and numbers in it are indices.
struct Getter {
    path: Vec<Value>,
    default: Option<Value>,
    ignore_case: bool,
}

impl Getter {
    fn new(attribute: Option<Value>, default: Option<Value>, ignore_case: bool) -> Getter {
        let path = match given(attribute) {
            None => Vec::new(),
            Some(attribute) => match view(&attribute) {
                View::Str(text) => text.split('.').map(path_part).collect(),
                _ => vec![attribute.clone()],
            },
        };
        Getter { path, default: given(default), ignore_case }
    }

    fn get(&self, value: &Value) -> Result<Value, Error> {
        let mut found = value.clone();
        for part in &self.path {
            found = get_item(&found, part)?;
            if let Some(default) = self.default.as_ref().filter(|_| found.is_undefined()) {
                found = default.clone();
            }
        }
        Ok(match view(&found) {
            View::Str(text) if self.ignore_case => Value::from(change_case(text, "lower")),
            _ => found,
        })
    }
}

fn path_part(text: &str) -> Value {
    match text.parse::<u32>() {
        Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Value::from(number),
        _ => Value::from(text),
    }
}

fn is_set(flag: Option<Value>) -> bool {
    flag.is_some_and(|flag| flag.is_true())
}

fn size(name: &str, value: Option<Value>) -> Result<usize, Error> {
    let size = value.and_then(|value| index(&value)).and_then(|size| usize::try_from(size).ok());
    size.filter(|size| *size <= MAX_WIDTH).ok_or_else(|| error(format!("{name} takes a whole number")))
}

fn batch(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, count, fill] = bind("batch", ["value", "linecount", "fill_with"], 2, args)?;
    let count = size("batch", count)?.max(1);
    let value = iterate(&value.unwrap_or_default())?;
    let mut rows: Vec<Vec<Value>> = value.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(row)) = (given(fill), rows.last_mut()) {
        row.resize(count, fill);
    }
    Ok(generator(rows.into_iter().map(list).collect()))
}

fn slice(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, slices, fill] = bind("slice", ["value", "slices", "fill_with"], 2, args)?;
    let slices = size("slice", slices)?;
    if slices == 0 {
        return Err(error("slice into no parts"));
    }
    let value = iterate(&value.unwrap_or_default())?;
    let (least, longer) = (value.len() / slices, value.len() % slices);
    let mut rest = &value[..];
    let mut rows = Vec::with_capacity(slices);
    for at in 0..slices {
        let (row, after) = rest.split_at(least + usize::from(at < longer));
        rest = after;
        let mut row = row.to_vec();
        row.extend(given(fill.clone()).filter(|_| at >= longer));
        rows.push(list(row));
    }
    Ok(generator(rows))
}

fn length_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("length", ["obj"], 1, args)?;
    length(&value.unwrap_or_default()).map(Value::from)
}

/// Sorts by keys that have an order, and keeps what is equal in its order.
fn sorted(mut items: Vec<(Vec<Value>, Value)>, reverse: bool) -> Result<Vec<(Vec<Value>, Value)>, Error> {
    let mut failure = None;
    let mut less = |a: &[Value], b: &[Value]| match a.iter().zip(b).find(|(a, b)| a != b) {
        Some((a, b)) => compare("<", a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            false
        }),
        None => false,
    };
    items.sort_by(|(a, _), (b, _)| {
        let order = match (less(a, b), less(b, a)) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => Ordering::Equal,
        };
        if reverse {
            order.reverse()
        } else {
            order
        }
    });
    failure.map_or(Ok(items), Err)
}

fn sort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, reverse, case, attribute] = bind("sort", ["value", "reverse", "case_sensitive", "attribute"], 1, args)?;
    let ignore_case = !is_set(case);
    let attributes = match given(attribute) {
        Some(attribute) if attribute.as_str().is_some() => {
            str_of(&attribute).split(',').map(|part| Some(Value::from(part))).collect()
        }
        attribute => vec![attribute],
    };
    let getters: Vec<Getter> = attributes.into_iter().map(|part| Getter::new(part, None, ignore_case)).collect();
    let keyed = iterate(&value.unwrap_or_default())?.into_iter().map(|value| {
        let keys = getters.iter().map(|getter| getter.get(&value)).collect::<Result<Vec<_>, _>>()?;
        Ok((keys, value))
    });
    let keyed = sorted(keyed.collect::<Result<_, Error>>()?, is_set(reverse))?;
    Ok(list(keyed.into_iter().map(|(_, value)| value).collect()))
}

fn dictsort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, case, by, reverse] = bind("dictsort", ["value", "case_sensitive", "by", "reverse"], 1, args)?;
    let value = value.unwrap_or_default();
    let View::Dict(entries) = view(&value) else {
        return Err(error(format!("dictsort takes a dict, not {}", type_name(&value))));
    };
    let by = by.map_or_else(|| "key".to_string(), |by| str_of(&by));
    let getter = Getter::new(None, None, !is_set(case));
    let keyed = entries.iter().map(|(key, value)| {
        let sort_key = match &*by {
            "key" => getter.get(key)?,
            "value" => getter.get(value)?,
            _ => return Err(error("dictsort sorts by \"key\" or \"value\"")),
        };
        Ok((vec![sort_key], tuple(vec![key.clone(), value.clone()])))
    });
    let keyed = sorted(keyed.collect::<Result<_, Error>>()?, is_set(reverse))?;
    Ok(list(keyed.into_iter().map(|(_, pair)| pair).collect()))
}

fn groupby(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, default, case] =
        bind("groupby", ["value", "attribute", "default", "case_sensitive"], 2, args)?;
    let exact = Getter::new(attribute.clone(), default.clone(), false);
    let getter = Getter::new(attribute, default, !is_set(case));
    let keyed = iterate(&value.unwrap_or_default())?.into_iter().map(|value| Ok((vec![getter.get(&value)?], value)));
    let keyed = sorted(keyed.collect::<Result<_, Error>>()?, false)?;
    let mut groups = Vec::new();
    for group in keyed.chunk_by(|(a, _), (b, _)| a == b) {
        let values: Vec<Value> = group.iter().map(|(_, value)| value.clone()).collect();
        groups.push(Value::from_object(Group([exact.get(&values[0])?, list(values)])));
    }
    Ok(list(groups))
}

fn first(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("first", ["seq"], 1, args)?;
    let value = value.unwrap_or_default();
    if object_of::<Generator>(&value).is_some() {
        return Ok(value.try_iter()?.next().unwrap_or_default());
    }
    Ok(iterate(&value)?.into_iter().next().unwrap_or_default())
}

fn last(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("last", ["seq"], 1, args)?;
    Ok(reversed(&value.unwrap_or_default())?.into_iter().next().unwrap_or_default())
}

fn reverse(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("reverse", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    match view(&value) {
        View::Str(text) => Ok(Value::from(text.chars().rev().collect::<String>())),
        View::Other => {
            let mut items = iterate(&value)?;
            items.reverse();
            Ok(list(items))
        }
        View::List(_) => Ok(lazy("list_reverseiterator", reversed(&value)?)),
        _ => Ok(lazy("reversed", reversed(&value)?)),
    }
}

fn items(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("items", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    match view(&value) {
        View::Undefined => Ok(generator(Vec::new())),
        View::Dict(entries) => {
            Ok(generator(entries.iter().map(|(key, value)| tuple(vec![key.clone(), value.clone()])).collect()))
        }
        _ => Err(error(format!("items takes a dict, not {}", type_name(&value)))),
    }
}

fn join(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, separator, attribute] = bind("join", ["value", "d", "attribute"], 1, args)?;
    let getter = Getter::new(attribute, None, false);
    let separator = separator.map_or_else(String::new, |separator| str_of(&separator));
    let mut out = String::new();
    for (at, value) in iterate(&value.unwrap_or_default())?.iter().enumerate() {
        if at > 0 {
            out.push_str(&separator);
        }
        out.push_str(&str_of(&getter.get(value)?));
    }
    Ok(Value::from(out))
}

fn list_filter(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("list", ["value"], 1, args)?;
    iterate(&value.unwrap_or_default()).map(list)
}

/// The arguments of a filter or test that another filter calls by its name.
fn passed_on(value: &Value, positional: &[Value], keyword: Vec<(String, Value)>) -> Vec<Value> {
    let mut args = vec![value.clone()];
    args.extend_from_slice(positional);
    if !keyword.is_empty() {
        args.push(Value::from(minijinja::value::Kwargs::from_iter(keyword)));
    }
    args
}

fn map(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let Split { positional, keyword } = keywords(args);
    let (value, rest) = positional.split_first().ok_or_else(|| error("map needs a value"))?;
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let values = iterate(value)?;
    let mapped = match rest.split_first() {
        None => {
            let named = positional_names(&keyword);
            let [attribute, default] = bind("map", ["attribute", "default"], 1, &named)?;
            let getter = Getter::new(attribute, default, false);
            values.iter().map(|value| getter.get(value)).collect::<Result<_, _>>()?
        }
        Some((name, more)) => {
            let name = str_of(name);
            let mut mapped = Vec::with_capacity(values.len());
            for value in &values {
                if !super::has_filter(&name) {
                    return Err(error(format!("there is no filter {name}")));
                }
                mapped.push(state.apply_filter(&name, &passed_on(value, more, keyword.clone()))?);
            }
            mapped
        }
    };
    Ok(generator(mapped))
}

fn positional_names(keyword: &[(String, Value)]) -> Vec<Value> {
    vec![Value::from(minijinja::value::Kwargs::from_iter(keyword.iter().cloned()))]
}

fn select(state: &mut State<'_, '_>, filter: &str, wanted: bool, args: &[Value]) -> Result<Value, Error> {
    let Split { positional, keyword } = keywords(args);
    let (value, mut rest) = positional.split_first().ok_or_else(|| error(format!("{filter} needs a value")))?;
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let mut attribute = None;
    if filter.ends_with("attr") {
        let (name, more) = rest.split_first().ok_or_else(|| error(format!("{filter} needs an attribute")))?;
        (attribute, rest) = (Some(name.clone()), more);
    }
    let getter = Getter::new(attribute, None, false);
    let test = rest.split_first().map(|(name, more)| (str_of(name), more));
    let mut selected = Vec::new();
    for value in iterate(value)? {
        let tested = getter.get(&value)?;
        let holds = match &test {
            None => tested.is_true(),
            Some((name, _)) if !super::has_test(name) => return Err(error(format!("there is no test {name}"))),
            Some((name, more)) => state.perform_test(name, &passed_on(&tested, more, keyword.clone()))?,
        };
        if holds == wanted {
            selected.push(value);
        }
    }
    Ok(generator(selected))
}

fn extreme(name: &str, operator: &str, args: &[Value]) -> Result<Value, Error> {
    let [value, case, attribute] = bind(name, ["value", "case_sensitive", "attribute"], 1, args)?;
    let getter = Getter::new(attribute, None, !is_set(case));
    let mut best: Option<(Value, Value)> = None;
    for value in iterate(&value.unwrap_or_default())? {
        let key = getter.get(&value)?;
        let better = match &best {
            None => true,
            Some((best, _)) => compare(operator, &key, best)?,
        };
        if better {
            best = Some((key, value));
        }
    }
    Ok(best.map(|(_, value)| value).unwrap_or_default())
}

fn sum(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, attribute, start] = bind("sum", ["iterable", "attribute", "start"], 1, args)?;
    let getter = Getter::new(attribute, None, false);
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return Err(error("sum() can't sum strings"));
    }
    for value in iterate(&value.unwrap_or_default())? {
        total = add(&total, &getter.get(&value)?)?;
    }
    Ok(total)
}

fn unique(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, case, attribute] = bind("unique", ["value", "case_sensitive", "attribute"], 1, args)?;
    let getter = Getter::new(attribute, None, !is_set(case));
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for value in iterate(&value.unwrap_or_default())? {
        let key = getter.get(&value)?;
        require_hashable(&key)?;
        if seen.insert(key) {
            kept.push(value);
        }
    }
    Ok(generator(kept))
}
