//! Compiling grammars, each on a thread of its own within limits of time and memory: at a limit, or when the caller has
//! left, the work unwinds and gives back what it took.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::json;

use crate::abi::{Cancel, Failure};
use crate::bounds;
use crate::grammar::{lock, sentence, top_level, Compiled, Key, Kind, Limits, Measured};
use crate::matcher::compute_mask;
use crate::meter::{self, Budget, Stopped};
use crate::stop::Stop;
use crate::vocabulary::vocabulary;

/// Grammars that are being compiled at once, those among them that unwind: textkit.h's TEXTKIT_MOST_COMPILING.
const MAX_COMPILING: usize = 4;
/// Between looks at whether the caller has left.
const LOOK: Duration = Duration::from_millis(20);
/// The size from which the allocator returns memory to the system at once. Smaller blocks stay in
/// an arena for a few threads each.
const MUCH: isize = 16 << 20;
/// Lexer states above which a request fails: some 50 MB.
const MAX_STATES: usize = 30_000;
/// Grammars nest deeply where no limit below counts; their compilation recurses.
const STACK: usize = 1 << 26;

/// Sets of tokens that a mask takes in at one stroke where all of them may follow, beside those that JSON strings need:
/// without these a regular expression over words looks at each token of the vocabulary.
const WORDS: [&str; 3] = ["[a-z]+", "[a-zA-Z]+", " [a-zA-Z]+"];

/// The inputs of a compilation, which may outlive its caller by the time that unwinding takes.
pub struct Compiler {
    factory: ParserFactory,
    total: Arc<AtomicIsize>,
    running: AtomicIsize, // bytes of compilations under way
    compiling: Mutex<usize>,
    done: Condvar, // one of them
}

/// One of the few that may compile.
pub struct Place(Arc<Compiler>);

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&self.0.compiling) -= 1;
        self.0.done.notify_one();
    }
}

/// A compilation under way, and its resources.
struct Running<'a> {
    stop: &'a Stop,
    all: &'a AtomicIsize, // Compiler::running
    before: isize,        // the meter at its start
    counted: Cell<isize>,
    most: Cell<isize>, // of what was counted
}

impl Running<'_> {
    fn is_over(&self) -> bool {
        let held = meter::bytes() - self.before;
        self.all.fetch_add(held - self.counted.replace(held), Ordering::Relaxed);
        self.most.set(self.most.get().max(held));
        self.stop.is_stopped()
    }

    /// Asks this, on this thread.
    fn cancel(&self) -> Cancel {
        unsafe extern "C" fn asked(context: *const c_void) -> bool {
            // SAFETY: `context` is a Running that outlives the Cancel, see below.
            unsafe { &*context.cast::<Running>() }.is_over()
        }
        // SAFETY: meter::within alone has it, on the thread of `self`, for a call that `self` outlives.
        unsafe { Cancel::new(asked, std::ptr::from_ref(self).cast()) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted.get(), Ordering::Relaxed);
    }
}

/// The result of a compilation. No lock and no count is held while it is made, so the work may
/// unwind anywhere.
struct Parts {
    prototype: TokenParser,
    rolls_back: bool,
    notes: Vec<String>,
    bytes: isize,           // of the prototype
    first: Measured,        // at the start of its text, its mask computed
    failed: Option<String>, // of that mask
}

impl Compiler {
    pub fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Compiler, Failure> {
        let vocabulary = vocabulary(tokenizer)?;
        let slices = [SlicedBiasComputer::general_slices(), WORDS.map(String::from).to_vec()].concat();
        let mut factory = ParserFactory::new(&vocabulary, InferenceCapabilities::default(), &slices)
            .map_err(|error| Failure::internal(format!("the vocabulary cannot be sliced: {error}")))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_STATES;
        // Done for every large lexeme, it took most of a second and 70 MB for a number's multipleOf.
        limits.precompute_large_lexemes = false;
        make_statics(&factory);
        Ok(Compiler {
            factory,
            total: Arc::default(),
            running: AtomicIsize::new(0),
            compiling: Mutex::default(),
            done: Condvar::new(),
        })
    }

    /// Bytes of all finished grammars and matchers.
    pub fn total(&self) -> &AtomicIsize {
        &self.total
    }

    /// Bytes of compilations under way. They count separately, so that a large grammar does not end
    /// other requests.
    pub fn running(&self) -> isize {
        self.running.load(Ordering::Relaxed)
    }

    /// Compilations under way, those among them that unwind.
    pub fn compiling(&self) -> usize {
        *lock(&self.compiling)
    }

    /// Waits for a place, if the limits permit it and the caller has not left.
    pub fn place(self: &Arc<Compiler>, limits: Limits) -> Result<Place, Failure> {
        let mut compiling = lock(&self.compiling);
        while *compiling >= MAX_COMPILING {
            if limits.at_once {
                return Err(Failure::exhausted("Too many grammars are being compiled at once: try again later."));
            }
            limits.cancel.check()?;
            (compiling, _) = self.done.wait_timeout(compiling, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        *compiling += 1;
        Ok(Place(self.clone()))
    }

    /// The place comes back with the grammar; at a limit it is kept until the work has unwound.
    pub fn compile_in_time(place: Place, key: &Key, limits: Limits) -> Result<(Arc<Compiled>, Place), Failure> {
        let stop = Arc::new(Stop::default());
        let (sender, receiver) = sync_channel(1);
        let work = {
            let (key, stop) = (key.clone(), stop.clone());
            let (memory, time) = (limits.memory, limits.time);
            move || {
                let compiled = catch_unwind(AssertUnwindSafe(|| place.0.compile_now(&key, &stop, memory, time)));
                let failed = || Err(Failure::internal("compiling the grammar failed"));
                let compiled = compiled.unwrap_or_else(|_| failed());
                let _ = sender.send(compiled.map(|compiled| (Arc::new(compiled), place)));
                // callers must not wait any longer
            }
        };
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        let thread = thread.map_err(|_| Failure::no_thread())?;
        let end = Instant::now() + limits.time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left.min(LOOK)) {
                Ok(compiled) => {
                    let _ = thread.join(); // it ends; leak checkers take what a thread on its way out holds for lost
                    return compiled;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::internal("compiling the grammar failed")),
                Err(RecvTimeoutError::Timeout) => {
                    let left_by = limits.cancel.check().err();
                    if let Some(failure) = left_by.or_else(|| left.is_zero().then(|| too_long(limits.time))) {
                        stop.now();
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn compile_now(&self, key: &Key, stop: &Stop, memory: isize, time: Duration) -> Result<Compiled, Failure> {
        let running =
            Running { stop, all: &self.running, before: meter::bytes(), counted: Cell::new(0), most: Cell::new(0) };
        let compiled = self.compile_within(key, &running, memory / 4, time);
        if compiled.is_err() && running.most.get() > MUCH {
            meter::trim();
        }
        compiled
    }

    fn compile_within(&self, key: &Key, running: &Running, most: isize, time: Duration) -> Result<Compiled, Failure> {
        let budget = Budget {
            bytes: usize::try_from(most).unwrap_or(0),
            pieces: usize::MAX,
            total_bytes: usize::MAX,
            cpu: time,
        };
        let made = meter::within(budget, running.cancel(), || self.make(key, running.stop));
        let Parts { prototype, rolls_back, notes, bytes, first, failed } =
            made.map_err(|stopped| match stopped {
                Stopped::Cpu => too_long(time),
                Stopped::Bytes | Stopped::Pieces | Stopped::TotalBytes => too_large(most),
                Stopped::Cancelled(failure) => failure,
            })??;
        if let Some(message) = failed {
            return Err(Failure::invalid(message));
        }
        let explains = key.kind == Kind::Lark;
        let compiled = Compiled::new(prototype, rolls_back, explains, notes, bytes + key.bytes(), self.total.clone());
        self.total.fetch_add(first.bytes, Ordering::Relaxed);
        compiled.give_back(first);
        Ok(compiled)
    }

    fn make(&self, key: &Key, stop: &Stop) -> Result<Parts, Failure> {
        let before = meter::bytes();
        let create =
            |grammar| self.factory.create_parser(grammar).map_err(|error| Failure::invalid(explain(key, &error)));
        let (grammar, mut notes) = top_level(key, false)?;
        let mut prototype = match create(grammar) {
            Ok(prototype) => prototype,
            Err(failure) => {
                let (grammar, tried) = top_level(key, true)?;
                if tried.len() == notes.len() {
                    return Err(failure); // no schema was at fault
                }
                notes = tried;
                create(grammar)?
            }
        };
        prototype.start_without_prompt();
        let rolls_back = prototype.parser.grammar().lexer_spec().can_rollback()
            && !may_name_tokens(key, self.factory.tok_env().tok_trie());
        let bytes = meter::bytes() - before;
        // A grammar that no text satisfies is detected only when it is used.
        let before = meter::bytes();
        let mut parser = prototype.deep_clone();
        stop.watch(&mut parser);
        let mask = compute_mask(&mut parser);
        stop.forget();
        let failed = mask.err().map(|error| match parser.stop_reason() {
            StopReason::NoExtensionBias => "no text satisfies the grammar".to_string(),
            _ => explain(key, &error),
        });
        let first = Measured { parser, bytes: meter::bytes() - before };
        Ok(Parts { prototype, rolls_back, notes, bytes, first, failed })
    }
}

/// Initialises the libraries' shared data at first use: within a limit that could unwind, and would
/// be poisoned for all.
fn make_statics(factory: &ParserFactory) {
    let schema = json!({"type": "null", "$defs": {"all": {"$ref": "http://json-schema.org/draft-07/schema#"}}});
    let _ = factory.create_parser(TopLevelGrammar::from_json_schema(schema));
}

fn too_long(time: Duration) -> Failure {
    Failure::invalid(format!(
        "compiling it takes longer than {} ms: make it simpler, or start the server with a larger \
         --grammar-compile-timeout-ms",
        time.as_millis()
    ))
}

fn too_large(most: isize) -> Failure {
    Failure::invalid(format!(
        "it is too complex: it takes more than {} MB, the most for one grammar; make it simpler, or start the server \
         with a larger --grammar-memory-mb",
        most >> 20
    ))
}

/// Whether the grammar may name tokens that have a text of their own by their numbers (`<[12]>`). A parser that goes back
/// over one comes out at another place, so it is not asked to. Control tokens have none.
fn may_name_tokens(key: &Key, trie: &TokTrie) -> bool {
    let numbers = |text: &str| -> Vec<String> {
        text.split("<[").skip(1).filter_map(|rest| Some(rest.split_once("]>")?.0.trim().to_string())).collect()
    };
    let text = if matches!(key.kind, Kind::Lark | Kind::Ebnf) { key.text.as_str() } else { "" };
    // Ranges and lists are no numbers: they are taken for ordinary tokens.
    let control = |number: &String| number.parse().is_ok_and(|id| trie.is_special_token(id));
    [text, &key.lead].iter().flat_map(|text| numbers(text)).any(|number| !control(&number))
}

/// The error of a grammar. The engine's form of a regular expression would not help the grammar's
/// author.
fn explain(key: &Key, error: &dyn std::fmt::Display) -> String {
    match key.kind {
        Kind::Regex => bounds::regex_error(&key.text).unwrap_or_else(|| "it is too complex".into()),
        Kind::Choice => "they are too many or too long".into(),
        Kind::Ebnf if !sentence(error).contains("token") => "it is too complex".into(), // its syntax has been read
        _ => match sentence(error) {
            panic if panic.starts_with("panic") => "it is too complex".into(),
            sentence => sentence,
        },
    }
}
