//! Python's semantics for templates: models' templates were written for Jinja2, which calls
//! Python's own operators, methods and builtins. minijinja parses and runs them; the operations
//! themselves are implemented here.

mod arguments;
mod filters;
mod methods;
mod objects;
mod operators;
mod percent;
mod sequences;
mod spec;
mod tests;
mod text;
mod value;

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

pub use arguments::{bind, given};
pub use methods::require_width;
pub use objects::Wide;
pub use operators::{escape, operator, ITERABLE};
pub use text::{float_repr, write_str};
pub use value::{iterate, type_name, view, Dict, View};

type Function = fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// Wider fields are of no use, and a width is an amount of memory.
const MAX_WIDTH: usize = 1 << 20;

/// The errors that Python raises as TypeError, ValueError and the like.
pub fn error(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Jinja2's filters, tests and globals, without those of minijinja.
pub fn add_to(environment: &mut Environment<'static>) {
    for &(name, function) in filters() {
        environment.add_filter(name, call(function));
    }
    for &(name, function) in tests::TESTS {
        environment.add_test(name, call(function));
    }
    operators::add_to(environment);
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("range", call(objects::range));
    environment.add_function("dict", call(objects::dict));
    environment.add_function("namespace", minijinja::functions::namespace);
    environment.add_function("cycler", call(objects::cycler));
    environment.add_function("joiner", call(objects::joiner));
}

fn call(
    function: Function,
) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| function(state, &args.into_values())
}

fn filters() -> impl Iterator<Item = &'static (&'static str, Function)> {
    const JSON: &[(&str, Function)] = &[("tojson", crate::json::tojson)];
    filters::FILTERS.iter().chain(sequences::FILTERS).chain(JSON)
}

/// Filters of Jinja2 that are not supported.
pub const MISSING_FILTERS: [&str; 7] =
    ["filesizeformat", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"];

pub fn has_filter(name: &str) -> bool {
    filters().any(|(known, _)| *known == name)
}

pub fn has_test(name: &str) -> bool {
    tests::TESTS.iter().any(|(known, _)| *known == name)
}
