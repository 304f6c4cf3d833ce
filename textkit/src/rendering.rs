//! Rendering a template within limits on its steps and on what it prints, and as long as somebody waits for it.

use std::cell::Cell;
use std::io;

use minijinja::value::Value;
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Output, State};

use crate::abi::{Cancel, Failure};

#[derive(Clone, Copy)]
pub struct Limits {
    pub steps: u64,   // instructions of the engine
    pub bytes: usize, // of text, also of text that a template captures and does not print
}

pub enum Unrendered {
    Limit(String), // says what the template does: "takes more than …"
    Template(Error),
    Ended(Failure), // cancelled, or no memory
}

thread_local! {
    /// What the rendering of this thread may still print through expressions.
    static PRINTABLE: Cell<usize> = const { Cell::new(0) };
}

/// Sees every expression that is printed, captures and macros included, where the writer below sees the page alone.
pub fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let size = value.as_str().map_or_else(|| value.to_string().len(), str::len);
    let left = PRINTABLE.get().checked_sub(size);
    PRINTABLE.set(left.unwrap_or(0));
    match left {
        Some(_) => escape_formatter(out, state, value),
        None => Err(Error::new(ErrorKind::WriteFailure, "too much text")),
    }
}

struct Page {
    text: Vec<u8>,
    limit: usize,
    cancel: Cancel,
    ended: Option<Failure>,
}

impl Page {
    fn make_room(&mut self, size: usize) -> Result<(), Failure> {
        self.cancel.check()?;
        self.text.try_reserve(size).map_err(|_| Failure::out_of_memory("what the chat template prints"))
    }
}

impl io::Write for &mut Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            return Err(io::Error::other("too much text"));
        }
        if let Err(failure) = self.make_room(bytes.len()) {
            self.ended = Some(failure);
            return Err(io::Error::other("nobody can take the text"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// REQUIRES: `environment` prints with [`print`] and has `limits.steps` as its fuel.
pub fn render_within(
    limits: Limits,
    cancel: Cancel,
    environment: &Environment,
    name: &str,
    context: Value,
) -> Result<String, Unrendered> {
    PRINTABLE.set(limits.bytes);
    let mut page = Page { text: Vec::new(), limit: limits.bytes, cancel, ended: None };
    let template = environment.get_template(name).map_err(Unrendered::Template)?;
    let outcome = template.render_captured_to(context, &mut page).map(drop);
    if let Some(failure) = page.ended {
        return Err(Unrendered::Ended(failure));
    }
    if let Err(error) = outcome {
        return Err(find_limit(&error, limits).map_or(Unrendered::Template(error), Unrendered::Limit));
    }
    String::from_utf8(page.text).map_err(|error| Unrendered::Ended(Failure::internal(error.to_string())))
}

/// A limit shows behind the macros and blocks that were open when it was reached.
fn find_limit(error: &Error, limits: Limits) -> Option<String> {
    let mut link: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = link {
        match cause.downcast_ref::<Error>().map(Error::kind) {
            Some(ErrorKind::OutOfFuel) => return Some(format!("takes more than {} steps", limits.steps)),
            Some(ErrorKind::WriteFailure) => return Some(format!("prints more than {} bytes", limits.bytes)),
            _ => link = cause.source(),
        }
    }
    None
}
