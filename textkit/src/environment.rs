//! The Jinja environment that chat templates expect: what transformers sets up around Jinja2, rebuilt on minijinja.

use std::error::Error as StdError;
use std::ffi::CString;
use std::fmt;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

use crate::python;
use crate::rendering::print;

pub fn chat_environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_formatter(print);
    python::add_to(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// An exception that the template itself raised, to be told apart from its failures.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The user's text for an error of rendering.
pub fn render_message(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return format!("the chat template refuses these messages: {}", raised.0);
        }
        text += &format!(": {inner}");
        cause = inner.source();
    }
    format!("the chat template cannot render these messages: {text}")
}

/// `strftime_now(format)` for the time `now`, in local time as Python's `datetime.now()`.
pub fn strftime_now(now: i64) -> Value {
    Value::from_function(move |format: &str| local_time(now, format))
}

fn local_time(now: i64, format: &str) -> Result<String, Error> {
    let invalid = |message: &str| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {message}"));
    if format.is_empty() {
        return Ok(String::new());
    }
    let format = CString::new(format).map_err(|_| invalid("the format holds a NUL character"))?;
    let seconds = libc::time_t::try_from(now).map_err(|_| invalid("the time is out of range"))?;
    let mut buffer = vec![0u8; 1024];
    // SAFETY: `tm` is plain data that localtime_r fills; strftime writes at most buffer.len() bytes.
    let size = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut tm).is_null() {
            return Err(invalid("the time is out of range"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &tm)
    };
    buffer.truncate(size);
    String::from_utf8(buffer).map_err(|_| invalid("the result is not valid UTF-8"))
}
