//! Arguments of a call by position and by name.

use minijinja::value::Value;
use minijinja::Error;

use super::error;

pub struct Split<'a> {
    pub positional: &'a [Value],
    pub keyword: Vec<(String, Value)>,
}

pub fn keywords(args: &[Value]) -> Split<'_> {
    let Some((last, positional)) = args.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Split { positional: args, keyword: Vec::new() };
    };
    let names = last.try_iter().into_iter().flatten();
    let keyword = names.map(|name| (name.to_string(), last.get_item(&name).unwrap_or_default())).collect();
    Split { positional, keyword }
}

/// The value of each parameter, None where it is left out.
pub fn bind<const N: usize>(
    function: &str,
    parameters: [&str; N],
    required: usize,
    args: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let Split { positional, keyword } = keywords(args);
    if positional.len() > N {
        return Err(error(format!("{function}() takes {N} arguments at most")));
    }
    let mut values = [const { None }; N];
    for (value, given) in values.iter_mut().zip(positional) {
        *value = Some(given.clone());
    }
    for (name, given) in keyword {
        let Some(at) = parameters.iter().position(|parameter| *parameter == name) else {
            return Err(error(format!("{function}() got an unexpected argument {name}")));
        };
        if values[at].replace(given).is_some() {
            return Err(error(format!("{function}() got {name} twice")));
        }
    }
    match values[..required].iter().position(Option::is_none) {
        Some(at) => Err(error(format!("{function}() needs {}", parameters[at]))),
        None => Ok(values),
    }
}

/// None where it is left out or is Python's None.
pub fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}
