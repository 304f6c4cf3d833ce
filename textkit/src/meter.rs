//! What a thread allocates and frees: so that grammars can be kept, and refused, by the memory they take, and so that
//! work which takes too much ends alone. Memory that cannot be had unwinds the call that asked for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Once;
use std::time::Duration;

use crate::abi::{Cancel, Failure};

struct Metered;

#[global_allocator]
static METERED: Metered = Metered;

/// What a piece of work may take. Work that allocates nothing is not seen, and not ended.
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
    NoMemory, // the system has none
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
    reason: Reason,
}

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static PIECES: Cell<isize> = const { Cell::new(0) };
    static WATCH: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// Between looks at the clock and at the caller's wishes.
const ALLOCATIONS: u32 = 256;

fn count(bytes: isize, pieces: isize) {
    let _ = BYTES.try_with(|total| total.set(total.get().wrapping_add(bytes)));
    let _ = PIECES.try_with(|total| total.set(total.get().wrapping_add(pieces)));
}

/// Whether the work of this thread may take `bytes` more. Once it may not, it stays so until the work has ended.
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
        cell.set(None); // what is asked here may allocate
        if watch.cancel.check().is_err() {
            watch.reason = Reason::Cancelled;
        } else if cpu_time() > watch.cpu {
            watch.reason = Reason::Cpu;
        }
    }
    watch.total = watch.total.saturating_sub(bytes);
    cell.set(Some(watch));
    watch.reason == Reason::None
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

// SAFETY: everything is the system allocator's; counting neither allocates without an end nor unwinds.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !may_take(layout.size()) {
            return std::ptr::null_mut();
        }
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            count(layout.size() as isize, 1);
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !may_take(layout.size()) {
            return std::ptr::null_mut();
        }
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            count(layout.size() as isize, 1);
        }
        memory
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

/// Bytes that this thread has allocated in this library and not freed. Only differences mean something: memory may be
/// freed by another thread than the one that took it.
pub fn bytes() -> isize {
    BYTES.with(Cell::get)
}

/// Gives what was freed back to the system.
pub fn trim() {
    // SAFETY: touches nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// What a panic carries that stands for memory that could not be had.
struct OutOfMemory;

pub fn is_out_of_memory(panic: &(dyn Any + Send)) -> bool {
    panic.is::<OutOfMemory>()
}

/// Unwinding takes some memory itself: this much is kept for it.
const RESERVE: usize = 1 << 18;
static RESERVED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

fn reserve() -> Layout {
    Layout::new::<[u8; RESERVE]>()
}

/// Without this a lack of memory ends the process. Calls that end so leave their data as any panic does.
pub fn unwind_without_memory() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::alloc::set_alloc_error_hook(unwind));
    if RESERVED.load(Ordering::Relaxed).is_null() {
        // SAFETY: the layout has a size; who finds another reserve there gives this one back.
        unsafe {
            let memory = System.alloc(reserve());
            let none = std::ptr::null_mut();
            if RESERVED.compare_exchange(none, memory, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                System.dealloc(memory, reserve());
            }
        }
    }
}

fn unwind(_: Layout) {
    if std::thread::panicking() {
        return; // a second panic ends the process in any case
    }
    let kept = RESERVED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !kept.is_null() {
        // SAFETY: unwind_without_memory() took it with this layout.
        unsafe { System.dealloc(kept, reserve()) };
    }
    let watch = WATCH.take();
    ENDED.set(watch.map_or(Reason::None, |watch| watch.reason));
    resume_unwind(Box::new(OutOfMemory));
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
        reason: Reason::None,
    };
    ENDED.set(Reason::None);
    WATCH.set(Some(watch));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let reason = WATCH.take().map_or(ENDED.get(), |watch| watch.reason);
    match (outcome, reason) {
        (Ok(value), Reason::None) => Ok(value),
        (Err(panic), Reason::None) if is_out_of_memory(panic.as_ref()) => Err(Stopped::NoMemory),
        (Err(panic), Reason::None) => resume_unwind(panic),
        (_, Reason::Bytes) => Err(Stopped::Bytes),
        (_, Reason::Pieces) => Err(Stopped::Pieces),
        (_, Reason::TotalBytes) => Err(Stopped::TotalBytes),
        (_, Reason::Cpu) => Err(Stopped::Cpu),
        (_, Reason::Cancelled) => {
            Err(Stopped::Cancelled(cancel.check().err().unwrap_or_else(|| Failure::internal("cancelled"))))
        }
    }
}
