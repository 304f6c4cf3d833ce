//! The Jinja environment that chat templates expect: what transformers sets up around Jinja2, rebuilt on minijinja.

use std::error::Error as StdError;
use std::ffi::CString;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

use crate::json;
use crate::rendering::print;

pub fn chat_environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

/// The `generation` block marks assistant text for training and prints its body unchanged. minijinja has no custom blocks,
/// so the tags become an `if` that always holds, with their whitespace control kept.
pub fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|length| start + length) else { break };
        let tag = &rest[start + 2..end];
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str(&rest[..start + 2]);
        match replacement {
            Some(replacement) => out.push_str(&tag.replacen(name, replacement, 1)),
            None => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    out
}

/// Words and signs of the longest expression or statement; a text in quotes is one.
pub fn longest_expression(source: &str) -> usize {
    let mut longest = 0;
    let mut rest = source.as_bytes();
    while let Some(start) = rest.windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#")) {
        let inner = &rest[start + 2..];
        let (size, end) = match rest[start + 1] {
            b'#' => (0, inner.windows(2).position(|pair| pair == b"#}").unwrap_or(inner.len())),
            _ => expression(inner),
        };
        longest = longest.max(size);
        rest = &inner[end..];
    }
    longest
}

/// The words and signs up to where an expression closes, and where that is.
fn expression(text: &[u8]) -> (usize, usize) {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let (mut size, mut at, mut open) = (0, 0, 0i64);
    while at < text.len() && (open > 0 || !(text[at..].starts_with(b"}}") || text[at..].starts_with(b"%}"))) {
        let first = text[at];
        size += usize::from(!first.is_ascii_whitespace());
        at += 1;
        match first {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open -= 1,
            b'\'' | b'"' => {
                while at < text.len() && text[at] != first {
                    at += 1 + usize::from(text[at] == b'\\');
                }
                at += 1;
            }
            first if is_word(first) => at += text[at..].iter().take_while(|&&byte| is_word(byte)).count(),
            _ => {}
        }
    }
    (size, at.min(text.len()))
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

/// What to tell the user about an error of rendering.
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
