//! Ending calls that run on a matcher from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use llguidance::{CancellationHandle, TokenParser};

/// A matcher uses several parsers in its time, and a parser's own handle ends that parser alone.
#[derive(Default)]
pub struct Stop {
    stopped: AtomicBool,
    parser: Mutex<Option<CancellationHandle>>,
}

impl Stop {
    pub fn now(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.parser.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.cancel();
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// From here on `now` ends calls that run on this parser.
    pub fn watch(&self, parser: &mut TokenParser) {
        let handle = parser.enable_cancellation();
        *self.parser.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        if self.is_stopped() {
            parser.enable_cancellation().cancel(); // it came between
        }
    }

    /// From here on the parser does not belong to this matcher.
    pub fn forget(&self) {
        *self.parser.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
