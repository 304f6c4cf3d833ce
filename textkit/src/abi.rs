//! The types that cross the C boundary: borrowed views in, owned buffers out, and a status with a
//! message for every failure.

use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe, PanicHookInfo};
use std::path::Path;
use std::sync::Once;

use crate::meter;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    InvalidArgument = 1,
    FailedPrecondition = 2,
    DataLoss = 3,
    Internal = 4,
    Exhausted = 5,
    Cancelled = 6,
    Unavailable = 7,
}

/// Whether the caller still wants the result of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Cancel {
    asked: Option<unsafe extern "C" fn(*const c_void) -> bool>,
    context: *const c_void,
}

// SAFETY: textkit.h says that `asked` may be called on another thread while the caller waits.
unsafe impl Send for Cancel {}
unsafe impl Sync for Cancel {}

impl Cancel {
    pub const NEVER: Cancel = Cancel { asked: None, context: std::ptr::null() };

    /// # Safety
    /// Any thread that has the value may call `asked` with `context`.
    pub unsafe fn new(asked: unsafe extern "C" fn(*const c_void) -> bool, context: *const c_void) -> Cancel {
        Cancel { asked: Some(asked), context }
    }

    /// An error once the caller asked to stop.
    pub fn check(&self) -> Result<(), Failure> {
        // SAFETY: the caller of the library keeps function and context alive for the call.
        match self.asked.is_some_and(|asked| unsafe { asked(self.context) }) {
            true => Err(Failure::cancelled()),
            false => Ok(()),
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure { status: Status::InvalidArgument, message: message.into() }
    }
    pub fn precondition(message: impl Into<String>) -> Failure {
        Failure { status: Status::FailedPrecondition, message: message.into() }
    }
    pub fn data_loss(message: impl Into<String>) -> Failure {
        Failure { status: Status::DataLoss, message: message.into() }
    }
    pub fn exhausted(message: impl Into<String>) -> Failure {
        Failure { status: Status::Exhausted, message: message.into() }
    }
    pub fn cancelled() -> Failure {
        Failure { status: Status::Cancelled, message: "the call was cancelled".into() }
    }
    pub fn no_thread() -> Failure {
        Failure { status: Status::Unavailable, message: "the system gives this process no more threads".into() }
    }
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure { status: Status::Internal, message: message.into() }
    }
}

/// Borrowed bytes of the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

impl View {
    /// # Safety
    /// The memory outlives the returned slice.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        unsafe { slice(self.data, self.size) }
    }

    /// The view as text; `what` names it in the error.
    ///
    /// # Safety
    /// As for [`View::bytes`].
    pub unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(unsafe { self.bytes() }).map_err(|error| {
            Failure::invalid(format!("{what} must be valid UTF-8; the byte at offset {} is not", error.valid_up_to()))
        })
    }

    /// A file's contents, or None where the caller has no such file.
    ///
    /// # Safety
    /// As for [`View::bytes`].
    pub unsafe fn optional<'a>(self, file: &str) -> Result<Option<&'a str>, Failure> {
        if self.data.is_null() {
            return Ok(None);
        }
        unsafe { self.text(file) }.map(Some).map_err(|error| Failure::data_loss(error.message))
    }
}

/// # Safety
/// `data` points to `size` values that outlive the slice; it may be anything when `size` is 0.
pub unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(data, size) }
    }
}

/// # Safety
/// As for [`slice`], and nothing else reads or writes the values meanwhile.
pub unsafe fn slice_mut<'a, T>(data: *mut T, size: usize) -> &'a mut [T] {
    if size == 0 {
        &mut []
    } else {
        unsafe { std::slice::from_raw_parts_mut(data, size) }
    }
}

/// A buffer that now belongs to the caller.
#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
}

pub type Bytes = Owned<u8>;
pub type Ids = Owned<i32>;

impl<T> From<Vec<T>> for Owned<T> {
    fn from(values: Vec<T>) -> Owned<T> {
        if values.is_empty() {
            return Owned { data: std::ptr::null_mut(), size: 0 };
        }
        let size = values.len();
        Owned { data: Box::into_raw(values.into_boxed_slice()).cast(), size }
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes::from(text.into_bytes())
    }
}

impl<T> Owned<T> {
    /// # Safety
    /// The buffer was made by [`From`] above and not freed yet.
    pub unsafe fn free(self) {
        if !self.data.is_null() {
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data, self.size)) });
        }
    }
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a panic for [`guard`] in place of printing it: a library does not write to standard error.
fn keep_panic(info: &PanicHookInfo) {
    let message = info.payload().downcast_ref::<&str>().map(|text| text.to_string());
    let message = message.or_else(|| info.payload().downcast_ref::<String>().cloned());
    let message = message.unwrap_or_else(|| "panic without a message".to_string());
    let place = info.location().map_or(String::new(), |location| {
        let file = Path::new(location.file()).file_name().unwrap_or_default();
        format!(" ({}:{})", file.to_string_lossy(), location.line())
    });
    PANIC.with(|kept| *kept.borrow_mut() = message + &place);
}

/// The result of `call`, or the failure that `explain` makes of its panic's message. Within
/// [`guard`], which keeps panics from being printed.
pub fn caught<T>(call: impl FnOnce() -> T, explain: impl FnOnce(String) -> Failure) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| explain(PANIC.with(|kept| kept.take())))
}

/// Runs `call` so that neither its error nor its panic leaves this library other than as a status and a message.
pub fn guard(error: *mut Bytes, call: impl FnOnce() -> Result<(), Failure>) -> Status {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(keep_panic)));
    meter::unwind_past_budgets();
    let result = caught(call, Failure::internal).unwrap_or_else(Err);
    match result {
        Ok(()) => Status::Ok,
        Err(failure) => {
            if !error.is_null() {
                unsafe { *error = Bytes::from(failure.message) };
            }
            failure.status
        }
    }
}

/// As [`guard`], for a call that returns a new handle.
pub fn make<T>(out: *mut *mut T, error: *mut Bytes, call: impl FnOnce() -> Result<T, Failure>) -> Status {
    guard(error, || {
        let made = Box::new(call()?);
        unsafe { *out = Box::into_raw(made) };
        Ok(())
    })
}
