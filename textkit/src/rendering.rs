//! Rendering a template within limits on its steps and its output, and only as long as its caller
//! waits.

use std::cell::Cell;
use std::fmt;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

use crate::abi::{caught, Cancel, Failure};
use crate::meter::{self, Budget, Stopped};
use crate::python::{escape, write_str};
use crate::render_threads::RenderThreads;
use crate::template::Template;

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
    /// The output that this thread's rendering may still print through expressions, and the caller
    /// that waits.
    static PRINTING: Cell<(usize, Cancel)> = const { Cell::new((0, Cancel::NEVER)) };
}

/// Sees every expression that is printed, captures and macros included.
pub fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let (left, cancel) = PRINTING.get();
    let mut text = Bounded { text: String::new(), most: left };
    let fits = match value.as_str() {
        Some(text) => text.len() <= left,
        None => write_str(&mut text, value).is_ok(),
    };
    let text = value.as_str().unwrap_or(&text.text);
    PRINTING.set((left.saturating_sub(text.len()), cancel));
    if !fits || cancel.check().is_err() {
        return Err(Error::new(ErrorKind::WriteFailure, "too much text, or nobody waits for it"));
    }
    let written = match state.auto_escape() {
        AutoEscape::None => out.write_str(text),
        _ if value.is_safe() => out.write_str(text),
        _ => out.write_str(&escape(text)),
    };
    written.map_err(Error::from)
}

/// Ends where there is too much of it: lists may hold one another many times.
struct Bounded {
    text: String,
    most: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.most {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// A template and its variables.
///
/// REQUIRES: `environment` prints with [`print`] and has `limits.steps` as its fuel; `limits.budget` allows no more than
/// [`MAX_PIECES`].
pub struct Rendering<'a> {
    pub limits: Limits,
    pub cancel: Cancel,
    pub environment: &'a Environment<'static>,
    pub template: &'a Template,
    pub context: Value,
}

impl Rendering<'_> {
    /// The text, rendered on one of `threads`, for the stack: the caller's is too small for a value that nests as deeply
    /// as it may.
    pub fn text_on(self, threads: &'static RenderThreads) -> Result<String, Unrendered> {
        let cancel = self.cancel;
        let work = || {
            let rendered = caught(|| self.text(), Failure::internal);
            let rendered = rendered.unwrap_or_else(|failure| Err(Unrendered::Ended(failure)));
            let clean = matches!(rendered, Ok(_) | Err(Unrendered::Template(_)));
            (rendered, clean)
        };
        threads.run(cancel, work).unwrap_or_else(|failure| Err(Unrendered::Ended(failure)))
    }

    fn text(self) -> Result<String, Unrendered> {
        let Rendering { limits, cancel, environment, template, context } = self;
        PRINTING.set((limits.bytes, cancel));
        let mut text = String::new();
        let rendered = meter::within(limits.budget, cancel, || {
            let outcome = template.render(environment, context, &mut text);
            outcome.map_err(|error| find_limit(&error, limits).map_or(Unrendered::Template(error), Unrendered::Limit))
        });
        cancel.check().map_err(Unrendered::Ended)?;
        rendered.map_err(|stopped| past_budget(stopped, limits.budget))??;
        match text.len() > limits.bytes {
            true => Err(Unrendered::Limit(too_much_text(limits))),
            false => Ok(text),
        }
    }
}

fn too_much_text(limits: Limits) -> String {
    format!("prints more than {} bytes", limits.bytes)
}

fn past_budget(stopped: Stopped, budget: Budget) -> Unrendered {
    Unrendered::Limit(match stopped {
        Stopped::Bytes => format!("takes more than {} MiB of memory", budget.bytes >> 20),
        Stopped::Pieces => format!("holds more than {} values at once", budget.pieces),
        Stopped::TotalBytes => format!("makes values of more than {} MiB in all", budget.total_bytes >> 20),
        Stopped::Cpu => format!("takes more than {} s", budget.cpu.as_secs()),
        Stopped::Cancelled(failure) => return Unrendered::Ended(failure),
    })
}

/// An error at a limit is wrapped in those of the macros and blocks that were open.
fn find_limit(error: &Error, limits: Limits) -> Option<String> {
    let mut link: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = link {
        match cause.downcast_ref::<Error>().map(Error::kind) {
            Some(ErrorKind::OutOfFuel) => return Some(format!("takes more than {} steps", limits.steps)),
            Some(ErrorKind::WriteFailure) => return Some(too_much_text(limits)),
            _ => link = cause.source(),
        }
    }
    None
}
