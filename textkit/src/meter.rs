//! What a thread allocates and frees, so that grammars can be kept, and refused, by the memory they take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Metered;

#[global_allocator]
static METERED: Metered = Metered;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let _ = BYTES.try_with(|total| total.set(total.get().wrapping_add(bytes)));
}

// SAFETY: everything is the system allocator's; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            count(layout.size() as isize);
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            count(layout.size() as isize);
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            count(size as isize - layout.size() as isize);
        }
        moved
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) };
        count(-(layout.size() as isize));
    }
}

/// Bytes that this thread has allocated in this library and not freed. Only differences mean something: memory may be
/// freed by another thread than the one that took it.
pub fn bytes() -> isize {
    BYTES.with(Cell::get)
}
