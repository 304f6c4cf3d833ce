//! Counts the bytes that a thread allocates and frees, so that grammars can be cached and refused
//! by their memory, and so that a piece of work that takes too much ends alone: an allocation past
//! its budget unwinds it. If the system has no memory, the process ends as it does when `new`
//! fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::abi::{Cancel, Failure};

struct Metered;

#[global_allocator]
static METERED: Metered = Metered;

/// The budget of a piece of work. Work that neither allocates nor calls [`look`] is not measured,
/// and not ended.
#[derive(Clone, Copy)]
pub struct Budget {
    pub bytes: usize,       // at once
    pub pieces: usize,      // of memory at once: values nest no deeper than that
    pub total_bytes: usize, // of all allocations, freed ones too: goes by the work that is done
    pub cpu: Duration,
}

/// Why work was ended.
pub enum Stopped {
    Bytes,
    Pieces,
    TotalBytes,
    Cpu,
    Cancelled(Failure),
}

#[derive(Clone, Copy, PartialEq)]
enum Reason {
    None,
    Bytes,
    Pieces,
    TotalBytes,
    Cpu,
    Cancelled,
}

#[derive(Clone, Copy)]
struct Watch {
    most: isize,        // of BYTES
    most_pieces: isize, // of PIECES
    total: usize,
    cpu: Duration,
    cancel: Cancel,
    allocations: u32,
    looked: Instant,
    reason: Reason,
}

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static PIECES: Cell<isize> = const { Cell::new(0) };
    static WATCH: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// The interval of checks of the clock and of the caller's wishes.
const ALLOCATIONS: u32 = 256;
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn count(bytes: isize, pieces: isize) {
    let _ = BYTES.try_with(|total| total.set(total.get().wrapping_add(bytes)));
    let _ = PIECES.try_with(|total| total.set(total.get().wrapping_add(pieces)));
}

/// Whether this thread's work may take `bytes` more. After the first refusal all further ones are
/// refused until the work has ended.
fn may_take(bytes: usize) -> bool {
    WATCH.try_with(|cell| cell.get().is_none_or(|watch| watched(cell, watch, bytes))).unwrap_or(true)
}

fn watched(cell: &Cell<Option<Watch>>, mut watch: Watch, bytes: usize) -> bool {
    watch.allocations += 1;
    if watch.reason != Reason::None {
        return false;
    }
    if BYTES.get().saturating_add_unsigned(bytes) > watch.most {
        watch.reason = Reason::Bytes;
    } else if PIECES.get() >= watch.most_pieces {
        watch.reason = Reason::Pieces;
    } else if bytes > watch.total {
        watch.reason = Reason::TotalBytes;
    } else if watch.allocations % ALLOCATIONS == 0 {
        ask(cell, &mut watch);
    }
    watch.total = watch.total.saturating_sub(bytes);
    cell.set(Some(watch));
    watch.reason == Reason::None
}

/// Checks the clock and the caller. REQUIRES: the cell gets its watch back.
fn ask(cell: &Cell<Option<Watch>>, watch: &mut Watch) {
    cell.set(None); // what is asked here may allocate
    if watch.cancel.check().is_err() {
        watch.reason = Reason::Cancelled;
    } else if cpu_time() > watch.cpu {
        watch.reason = Reason::Cpu;
    }
}

/// For loops that allocate too little to be seen: unwinds to [`within`] where the work of this thread may not go on.
pub fn look() {
    WATCH.with(|cell| {
        let Some(mut watch) = cell.get().filter(|watch| watch.looked.elapsed() >= LOOK_EVERY) else { return };
        watch.looked = Instant::now();
        ask(cell, &mut watch);
        match watch.reason {
            Reason::None => cell.set(Some(watch)),
            reason => {
                ENDED.set(reason);
                resume_unwind(Box::new(PastBudget));
            }
        }
    });
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn take(layout: Layout, memory: impl FnOnce() -> *mut u8) -> *mut u8 {
    if !may_take(layout.size()) {
        return std::ptr::null_mut();
    }
    let memory = memory();
    if !memory.is_null() {
        count(layout.size() as isize, 1);
    }
    memory
}

// SAFETY: everything is the system allocator's; counting neither allocates without an end nor unwinds.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && !may_take(size - layout.size()) {
            return std::ptr::null_mut();
        }
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            count(size as isize - layout.size() as isize, 0);
        }
        moved
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) };
        count(-(layout.size() as isize), -1);
    }
}

/// Bytes that this thread has allocated in this library and not freed. Only differences are
/// meaningful, because another thread may free the memory.
pub fn bytes() -> isize {
    BYTES.with(Cell::get)
}

/// Gives freed memory back to the system.
pub fn trim() {
    // SAFETY: touches no memory in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// The payload of a panic that ends a piece of work.
struct PastBudget;

extern "C" {
    #[link_name = "_ZSt15get_new_handlerv"] // C++: std::get_new_handler()
    fn get_new_handler() -> Option<extern "C" fn()>;
}

/// Without this an allocation past a budget ends the process.
pub fn unwind_past_budgets() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::alloc::set_alloc_error_hook(unwind));
}

/// The process ends where this returns.
fn unwind(_: Layout) {
    match WATCH.take().map_or(Reason::None, |watch| watch.reason) {
        Reason::None => {
            // SAFETY: asks the C++ library, which is in every program that has this one.
            if let Some(end) = unsafe { get_new_handler() } {
                end();
            }
        }
        reason => {
            ENDED.set(reason);
            resume_unwind(Box::new(PastBudget));
        }
    }
}

thread_local! {
    static ENDED: Cell<Reason> = const { Cell::new(Reason::None) };
}

/// Runs `work` as long as it stays within the budget and `cancel` is not asked for. Other panics go through.
///
/// REQUIRES: not within another budget.
pub fn within<T>(budget: Budget, cancel: Cancel, work: impl FnOnce() -> T) -> Result<T, Stopped> {
    let watch = Watch {
        most: bytes().saturating_add_unsigned(budget.bytes),
        most_pieces: PIECES.get().saturating_add_unsigned(budget.pieces),
        total: budget.total_bytes,
        cpu: cpu_time() + budget.cpu,
        cancel,
        allocations: 0,
        looked: Instant::now(),
        reason: Reason::None,
    };
    ENDED.set(Reason::None);
    WATCH.set(Some(watch));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let reason = WATCH.take().map_or(ENDED.get(), |watch| watch.reason);
    match (outcome, reason) {
        (Ok(value), Reason::None) => Ok(value),
        (Err(panic), Reason::None) => resume_unwind(panic),
        (_, Reason::Bytes) => Err(Stopped::Bytes),
        (_, Reason::Pieces) => Err(Stopped::Pieces),
        (_, Reason::TotalBytes) => Err(Stopped::TotalBytes),
        (_, Reason::Cpu) => Err(Stopped::Cpu),
        (_, Reason::Cancelled) => Err(Stopped::Cancelled(Failure::cancelled())),
    }
}
