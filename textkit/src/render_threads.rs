//! Threads whose stacks suffice for rendering. They are made when they are first needed, and kept: where memory has
//! become short, chats are answered as before.

use std::collections::VecDeque;
use std::mem::transmute;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::abi::{Cancel, Failure};

const STACK: usize = 1 << 27;
/// The number of threads of each kind. A stack that was filled once keeps its memory.
const MAX_THREADS: usize = 4;
/// Between looks at whether the caller has left.
const LOOK: Duration = Duration::from_millis(20);

/// Returns whether the thread may go on. One that unwound may have left something in the libraries' thread-locals, which
/// goes with the thread.
type Work<'a> = Box<dyn FnOnce() -> bool + Send + 'a>;

pub struct RenderThreads {
    state: Mutex<State>,
    posted: Condvar,
}

struct State {
    queue: VecDeque<(u64, Work<'static>)>,
    next: u64,
    threads: usize,
    idle: usize,
}

/// Half of the cores are for each, so that long conversations hold up no short ones.
pub static USUAL: RenderThreads = RenderThreads::new();
pub static LARGE: RenderThreads = RenderThreads::new();

/// Work that borrows from this frame: it is done, or withdrawn, before the frame ends.
struct Posted<T> {
    threads: &'static RenderThreads,
    id: u64,
    receiver: Receiver<T>,
    over: bool,
}

impl<T> Drop for Posted<T> {
    fn drop(&mut self) {
        if !self.over && !self.threads.withdraw(self.id) {
            let _ = self.receiver.recv();
        }
    }
}

impl RenderThreads {
    const fn new() -> RenderThreads {
        let state = State { queue: VecDeque::new(), next: 0, threads: 0, idle: 0 };
        RenderThreads { state: Mutex::new(state), posted: Condvar::new() }
    }

    /// Returns the result of `work`, and whether its thread may go on. Waits for a thread, unless
    /// the caller has left.
    pub fn run<T: Send>(&'static self, cancel: Cancel, work: impl FnOnce() -> (T, bool) + Send) -> Result<T, Failure> {
        let (sender, receiver) = sync_channel(1);
        let work: Work = Box::new(move || {
            let (value, clean) = work();
            let _ = sender.send(value); // the last that touches the caller's
            clean
        });
        // SAFETY: Posted waits for its end, or takes it out of the queue, before what it borrows goes.
        let work = unsafe { transmute::<Work<'_>, Work<'static>>(work) };
        let mut posted = Posted { threads: self, id: self.post(work), receiver, over: false };
        self.make_thread()?;
        loop {
            match posted.receiver.recv_timeout(LOOK) {
                Ok(value) => {
                    posted.over = true;
                    return Ok(value);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    posted.over = true;
                    return Err(Failure::internal("rendering the chat template failed"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    cancel.check()?; // work that runs asks for itself, and Posted waits for it
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, work: Work<'static>) -> u64 {
        let mut state = self.state();
        let id = state.next;
        state.queue.push_back((id, work));
        state.next += 1;
        self.posted.notify_one();
        id
    }

    /// False: a thread has already taken it.
    fn withdraw(&self, id: u64) -> bool {
        let mut state = self.state();
        let place = state.queue.iter().position(|(queued, _)| *queued == id);
        place.is_some_and(|place| state.queue.remove(place).is_some())
    }

    /// Starts another thread if work waits and the limit permits. An error if there is no thread at
    /// all.
    fn make_thread(&'static self) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut state = self.state();
        if state.queue.len() <= state.idle || state.threads >= (cores / 2).clamp(1, MAX_THREADS) {
            return Ok(());
        }
        match self.spawn() {
            Ok(()) => state.threads += 1,
            Err(_) if state.threads > 0 => {}
            Err(_) => return Err(Failure::no_thread()),
        }
        Ok(())
    }

    fn spawn(&'static self) -> std::io::Result<()> {
        std::thread::Builder::new().stack_size(STACK).spawn(|| self.serve()).map(drop)
    }

    fn serve(&'static self) {
        loop {
            let work = self.next();
            let clean = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            if !clean && self.spawn().is_ok() {
                return; // that one takes its place
            }
        }
    }

    fn next(&self) -> Work<'static> {
        let mut state = self.state();
        loop {
            if let Some((_, work)) = state.queue.pop_front() {
                return work;
            }
            state.idle += 1;
            state = self.posted.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}
