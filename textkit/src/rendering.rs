//! Rendering a template within limits on its steps and on what it prints, and as long as somebody waits for it.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::io;

use minijinja::value::Value;
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Output, State};

use crate::abi::{caught, Cancel, Failure};
use crate::meter::{self, Budget, Stopped};
use crate::render_threads::RenderThreads;

/// Pieces of memory that the values of a template may have at once. A value within another one is a piece or two, and the
/// engine frees, prints and compares by recursion, up to 500 bytes of stack for each.
pub const MAX_PIECES: usize = 200_000;

#[derive(Clone, Copy)]
pub struct Limits {
    pub steps: u64,     // instructions of the engine
    pub bytes: usize,   // of text, also of text that a template captures and does not print
    pub budget: Budget, // a step may do any amount of work
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
    let size = value.as_str().map_or_else(|| size_of_text(value), str::len);
    let left = PRINTABLE.get().checked_sub(size);
    PRINTABLE.set(left.unwrap_or(0));
    match left {
        Some(_) => escape_formatter(out, state, value),
        None => Err(Error::new(ErrorKind::WriteFailure, "too much text")),
    }
}

/// Stops where there is too much of it: lists may hold one another many times.
fn size_of_text(value: &Value) -> usize {
    struct Size(usize);
    impl fmt::Write for Size {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            if self.0 > PRINTABLE.get() {
                Err(fmt::Error)
            } else {
                Ok(())
            }
        }
    }
    let mut size = Size(0);
    let _ = write!(size, "{value}");
    size.0
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

/// Renders on one of `threads`, for the stack: the caller's is too small for a value that nests as deeply as it may.
///
/// REQUIRES: `environment` prints with [`print`] and has `limits.steps` as its fuel; `limits.budget` allows no more than
/// [`MAX_PIECES`].
pub fn render_within(
    threads: &'static RenderThreads,
    limits: Limits,
    cancel: Cancel,
    environment: &Environment,
    name: &str,
    context: Value,
) -> Result<String, Unrendered> {
    let work = || {
        let rendered = caught(|| render_here(limits, cancel, environment, name, context), Failure::internal);
        let rendered = rendered.unwrap_or_else(|failure| Err(Unrendered::Ended(failure)));
        let clean = matches!(rendered, Ok(_) | Err(Unrendered::Template(_)));
        (rendered, clean)
    };
    threads.run(cancel, work).unwrap_or_else(|failure| Err(Unrendered::Ended(failure)))
}

fn render_here(
    limits: Limits,
    cancel: Cancel,
    environment: &Environment,
    name: &str,
    context: Value,
) -> Result<String, Unrendered> {
    PRINTABLE.set(limits.bytes);
    let mut page = Page { text: Vec::new(), limit: limits.bytes, cancel, ended: None };
    let template = environment.get_template(name).map_err(Unrendered::Template)?;
    let rendered = meter::within(limits.budget, cancel, || {
        let outcome = template.render_captured_to(context, &mut page).map(drop);
        outcome.map_err(|error| find_limit(&error, limits).map_or(Unrendered::Template(error), Unrendered::Limit))
    });
    if let Some(failure) = page.ended {
        return Err(Unrendered::Ended(failure));
    }
    rendered.map_err(|stopped| past_budget(stopped, limits.budget))??;
    String::from_utf8(page.text).map_err(|error| Unrendered::Ended(Failure::internal(error.to_string())))
}

fn past_budget(stopped: Stopped, budget: Budget) -> Unrendered {
    Unrendered::Limit(match stopped {
        Stopped::Bytes => format!("takes more than {} MiB of memory", budget.bytes >> 20),
        Stopped::Pieces => format!("holds more than {} values at once", budget.pieces),
        Stopped::TotalBytes => format!("makes values of more than {} MiB in all", budget.total_bytes >> 20),
        Stopped::Cpu => format!("takes more than {} s", budget.cpu.as_secs()),
        Stopped::Cancelled(failure) => return Unrendered::Ended(failure),
        Stopped::NoMemory => return Unrendered::Ended(Failure::out_of_memory("the chat template's text")),
    })
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
