//! Grammars for one tokenizer: from what a request says to matchers, with a cache, because services send the same few
//! schemas again and again.

use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokTrie};
use llguidance::{regex_to_lark, ParserFactory, TokenParser};
use serde_json::{json, Value as Json};

use crate::abi::Failure;
use crate::bounds;
use crate::gbnf;
use crate::matcher::{compute_mask, Matcher};
use crate::meter;
use crate::stop::Stop;
use crate::vocabulary::vocabulary;

/// Bytes of a grammar's text, or of all choices together. Compiling takes seconds somewhere above.
const MAX_TEXT: usize = 1 << 18;
const MAX_CHOICES: usize = 1 << 13;
/// Grammars that are being compiled at once, those among them whose caller waits no longer; and how long another one
/// waits for its turn. Callers have threads of their own that others may need.
const MAX_COMPILING: usize = 4;
const MAX_TURN: Duration = Duration::from_millis(200);
/// Matchers kept warm for each grammar: a warm one has its lexer's states built.
const MAX_IDLE: usize = 16;
/// Lexer states above which a matcher is not kept (one takes one to two kilobytes).
const MAX_IDLE_STATES: usize = 4_000;
/// Lexer states above which a request fails: some 50 MB.
const MAX_STATES: usize = 30_000;
/// Grammars nest deeply where no limit below counts; their compilation recurses.
const STACK: usize = 1 << 26;
/// What may stand between the tokens of JSON: a space or a line break. Without a bound a model can write spaces for ever
/// and never break the schema, and with room for an indentation it wanders there. A schema may ask for more.
const JSON_WHITESPACE: &str = r"[ ]|\r?\n";

/// Sets of tokens that a mask takes in at one stroke where all of them may follow, beside those that JSON strings need:
/// without these a regular expression over words looks at each token of the vocabulary.
const WORDS: [&str; 3] = ["[a-z]+", "[a-zA-Z]+", " [a-zA-Z]+"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Choice,
    Lark,
    Ebnf,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    kind: Kind,
    text: String,
    choices: Vec<String>,
    lead: String,
}

/// What a caller allows.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of all grammars and matchers together.
    pub memory: isize,
    pub time: Duration,
}

/// A parser, and the bytes that it was seen to take.
pub struct Measured {
    pub parser: TokenParser,
    pub bytes: isize,
}

/// A grammar ready to be matched, and matchers that have served before.
pub struct Compiled {
    prototype: TokenParser,
    rolls_back: bool,
    explains: bool,
    idle: Mutex<Vec<Measured>>,
    last_use: AtomicU64,
    bytes: isize,            // the prototype's, and the key's
    total: Arc<AtomicIsize>, // of everything that the Grammars made and that still lives
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let idle: isize = lock(&self.idle).iter().map(|kept| kept.bytes).sum();
        self.total.fetch_sub(self.bytes + idle, Ordering::Relaxed);
    }
}

impl Compiled {
    pub fn rolls_back(&self) -> bool {
        self.rolls_back
    }

    /// Whether its author knows the engine's terms.
    pub fn explains(&self) -> bool {
        self.explains
    }

    /// Bytes of everything that lives.
    pub fn total(&self) -> &AtomicIsize {
        &self.total
    }

    /// A parser at the start of the text that shares nothing with others: matchers run in parallel.
    fn take(&self) -> Measured {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| {
            let before = meter::bytes();
            let parser = self.fresh();
            let bytes = meter::bytes() - before;
            self.total.fetch_add(bytes, Ordering::Relaxed);
            Measured { parser, bytes }
        })
    }

    pub fn fresh(&self) -> TokenParser {
        self.prototype.deep_clone()
    }

    /// Keeps a parser that is at the start of its text again, and in `total`, or drops it.
    pub fn give_back(&self, mut used: Measured) {
        let states = used.parser.parser.lexer_stats().num_states;
        let before = meter::bytes();
        let kept = self.rolls_back && states <= MAX_IDLE_STATES && used.parser.reset().is_ok();
        let freed = before - meter::bytes();
        used.bytes -= freed;
        self.total.fetch_sub(freed, Ordering::Relaxed);
        let mut idle = lock(&self.idle);
        if kept && idle.len() < MAX_IDLE {
            idle.push(used);
        } else {
            drop(idle);
            self.discard(used);
        }
    }

    fn discard(&self, used: Measured) {
        drop(used.parser);
        self.total.fetch_sub(used.bytes, Ordering::Relaxed);
    }

    fn discard_idle(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|kept| self.discard(kept));
    }
}

pub struct Grammars {
    compiler: Arc<Compiler>,
    cache: Mutex<HashMap<Key, Arc<Compiled>>>,
    uses: AtomicU64,
}

/// What compiling needs: a compilation that takes too long outlives its caller.
struct Compiler {
    factory: ParserFactory,
    total: Arc<AtomicIsize>,
    compiling: Mutex<usize>,
    done: Condvar, // one of them
}

impl Grammars {
    pub fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Grammars, Failure> {
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
        let compiler = Compiler { factory, total: Arc::default(), compiling: Mutex::default(), done: Condvar::new() };
        Ok(Grammars { compiler: Arc::new(compiler), cache: Mutex::default(), uses: AtomicU64::new(0) })
    }

    /// Bytes of everything that lives, and grammars in the cache.
    pub fn usage(&self) -> (u64, u64) {
        let bytes = self.compiler.total.load(Ordering::Relaxed);
        (u64::try_from(bytes).unwrap_or(0), lock(&self.cache).len() as u64)
    }

    pub fn compile(
        &self,
        kind: Kind,
        text: &str,
        choices: &[&str],
        lead: &str,
        limits: Limits,
    ) -> Result<Matcher, Failure> {
        let size = text.len() + lead.len() + choices.iter().map(|choice| choice.len()).sum::<usize>();
        if size > MAX_TEXT {
            return Err(Failure::invalid(format!("the grammar has {size} bytes: at most {MAX_TEXT} are accepted")));
        }
        if choices.len() > MAX_CHOICES {
            let count = choices.len();
            return Err(Failure::invalid(format!("there are {count} choices: at most {MAX_CHOICES} are accepted")));
        }
        let choices = choices.iter().map(|choice| choice.to_string()).collect();
        let key = Key { kind, text: text.into(), choices, lead: lead.into() };
        self.make_room(limits.memory)?;
        let known = lock(&self.cache).get(&key).cloned();
        let compiled = match known {
            Some(compiled) => compiled,
            // Two threads may have compiled the same text at once: the first one's is kept.
            None => {
                let compiled = self.compiler.compile_in_time(&key, limits)?;
                lock(&self.cache).entry(key).or_insert(compiled).clone()
            }
        };
        compiled.last_use.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let first = compiled.take();
        if let Err(failure) = self.make_room(limits.memory) {
            compiled.discard(first);
            return Err(failure);
        }
        Ok(Matcher::new(compiled, first, limits.memory))
    }

    /// Drops grammars that nobody matches until half of the memory is free. What is in use stays, and no more comes to it
    /// when it takes all.
    fn make_room(&self, memory: isize) -> Result<(), Failure> {
        let total = || self.compiler.total.load(Ordering::Relaxed);
        while total() > memory / 2 {
            let mut cache = lock(&self.cache);
            let unused = cache.iter().filter(|(_, compiled)| Arc::strong_count(compiled) == 1);
            let oldest = unused.min_by_key(|(_, compiled)| compiled.last_use.load(Ordering::Relaxed));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            let dropped = cache.remove(&oldest);
            drop(cache);
            drop(dropped); // takes a while
        }
        if total() > memory {
            let used: Vec<_> = lock(&self.cache).values().cloned().collect();
            used.iter().for_each(|compiled| compiled.discard_idle());
        }
        if total() > memory {
            return Err(Failure::exhausted(
                "The grammars of running requests take all the memory that there is for grammars: try again later.",
            ));
        }
        Ok(())
    }
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

impl Compiler {
    fn compile_in_time(self: &Arc<Compiler>, key: &Key, limits: Limits) -> Result<Arc<Compiled>, Failure> {
        self.begin()?;
        let stop = Arc::new(Stop::default());
        let (sender, receiver) = sync_channel(1);
        let work = {
            let (compiler, key, stop) = (self.clone(), key.clone(), stop.clone());
            move || {
                let compiled = catch_unwind(AssertUnwindSafe(|| compiler.compile_now(&key, &stop, limits.memory)));
                compiler.end();
                let failed = || Err(Failure::internal("compiling the grammar failed"));
                let _ = sender.send(compiled.unwrap_or_else(|_| failed()).map(Arc::new));
                // nobody may wait any longer
            }
        };
        let thread = match std::thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(thread) => thread,
            Err(error) => {
                self.end();
                return Err(Failure::exhausted(format!("There is no thread to compile the grammar in ({error}).")));
            }
        };
        match receiver.recv_timeout(limits.time) {
            Ok(compiled) => {
                let _ = thread.join(); // it ends; leak checkers take what a thread on its way out holds for lost
                compiled
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::internal("compiling the grammar failed")),
            Err(RecvTimeoutError::Timeout) => {
                stop.now();
                let time = limits.time.as_millis();
                Err(Failure::invalid(format!(
                    "compiling it takes longer than {time} ms: make it simpler, or start the server with a larger \
                     --grammar-compile-timeout-ms"
                )))
            }
        }
    }

    fn begin(&self) -> Result<(), Failure> {
        let turn = self.done.wait_timeout_while(lock(&self.compiling), MAX_TURN, |n| *n >= MAX_COMPILING);
        let (mut compiling, _) = turn.unwrap_or_else(PoisonError::into_inner);
        if *compiling >= MAX_COMPILING {
            return Err(Failure::exhausted("Too many grammars are being compiled at once: try again later."));
        }
        *compiling += 1;
        Ok(())
    }

    fn end(&self) {
        *lock(&self.compiling) -= 1;
        self.done.notify_one();
    }

    fn compile_now(&self, key: &Key, stop: &Stop, memory: isize) -> Result<Compiled, Failure> {
        let before = meter::bytes();
        let grammar = top_level(key)?;
        let mut prototype =
            self.factory.create_parser(grammar).map_err(|error| Failure::invalid(explain(key, &error)))?;
        prototype.start_without_prompt();
        let rolls_back = prototype.parser.grammar().lexer_spec().can_rollback() && !may_name_tokens(key, self.factory.tok_env().tok_trie());
        let bytes = meter::bytes() - before + key.bytes();
        self.total.fetch_add(bytes, Ordering::Relaxed);
        let (idle, last_use) = (Mutex::default(), AtomicU64::new(0));
        let explains = key.kind == Kind::Lark;
        let compiled = Compiled { prototype, rolls_back, explains, idle, last_use, bytes, total: self.total.clone() };
        // A grammar that no text satisfies shows itself only when it is used.
        let mut first = compiled.take();
        stop.watch(&mut first.parser);
        let before = meter::bytes();
        let mask = compute_mask(&mut first.parser);
        let grown = meter::bytes() - before;
        first.bytes += grown;
        self.total.fetch_add(grown, Ordering::Relaxed);
        stop.forget();
        let failed = mask.err().map(|error| match first.parser.stop_reason() {
            llguidance::api::StopReason::NoExtensionBias => "no text satisfies the grammar".to_string(),
            _ => explain(key, &error),
        });
        let taken = bytes + first.bytes;
        compiled.give_back(first);
        match failed {
            Some(message) => Err(Failure::invalid(message)),
            None if taken > memory / 4 => Err(Failure::invalid(format!(
                "it takes {} MB, more than one grammar may: make it simpler, or start the server with a larger \
                 --grammar-memory-mb",
                taken >> 20
            ))),
            None => Ok(compiled),
        }
    }
}

impl Key {
    fn bytes(&self) -> isize {
        let choices: usize = self.choices.iter().map(|choice| choice.len() + size_of::<String>()).sum();
        (self.text.len() + self.lead.len() + choices + size_of::<Key>()) as isize
    }
}

/// What is wrong with a grammar. What the engine makes of a regular expression is of no use to who wrote it.
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

fn top_level(key: &Key) -> Result<TopLevelGrammar, Failure> {
    let text = match key.kind {
        Kind::JsonObject | Kind::JsonSchema => {
            let schema = json_schema(if key.kind == Kind::JsonObject { r#"{"type": "object"}"# } else { &key.text })?;
            if key.lead.is_empty() {
                return Ok(TopLevelGrammar::from_json_schema(schema));
            }
            format!("%json {schema}")
        }
        Kind::Regex => {
            bounds::check_regex(&key.text)?;
            regex_rule(&key.text)
        }
        Kind::Choice => {
            if key.choices.is_empty() {
                return Err(Failure::invalid("there are no choices"));
            }
            key.choices.iter().try_for_each(|choice| bounds::check_text(choice))?;
            let choices: Vec<String> = key.choices.iter().map(|choice| gbnf::escaped(choice)).collect();
            regex_rule(&choices.join("|"))
        }
        Kind::Lark | Kind::Ebnf if !key.lead.is_empty() => {
            return Err(Failure::invalid("it says itself what its text begins with, so nothing can precede it"));
        }
        Kind::Lark => return Ok(TopLevelGrammar::from_lark(key.text.clone())),
        Kind::Ebnf => match gbnf::convert(&key.text)? {
            gbnf::Converted::Regex(regex) => {
                bounds::check_regex(&regex)?;
                regex_rule(&regex)
            }
            gbnf::Converted::Lark(lark) => return Ok(TopLevelGrammar::from_lark(lark)),
        },
    };
    Ok(TopLevelGrammar::from_lark(match key.lead.as_str() {
        "" => format!("start: {text}\n"),
        whole if whole.starts_with("whole:") => format!("start: whole\ntext: {text}\n{whole}"),
        lead => format!("start: lead text\ntext: {text}\n{lead}"),
    }))
}

/// The schema with the whitespace rule, unless it brings its own (`x-guidance`).
fn json_schema(text: &str) -> Result<Json, Failure> {
    let mut schema: Json =
        serde_json::from_str(text).map_err(|error| Failure::invalid(format!("the schema is not JSON: {error}")))?;
    if let Some(number) = rounded_integer(text) {
        return Err(Failure::invalid(format!(
            "the schema holds the integer {number}, which has more than 64 bits: write it as a number with a fraction or as text"
        )));
    }
    bounds::check_schema(&schema)?;
    if let Some(object) = schema.as_object_mut() {
        let options = object.entry("x-guidance").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut() {
            if !options.contains_key("whitespace_pattern") && !options.contains_key("whitespace_flexible") {
                options.insert("whitespace_pattern".into(), JSON_WHITESPACE.into());
            }
        }
    }
    Ok(schema)
}

/// The first integer that the reader of JSON can hold only rounded. `text` is JSON.
fn rounded_integer(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| b"+-.0123456789Ee".contains(byte)).count();
                let number = &text[at..at + length];
                if !number.contains(['.', 'e', 'E']) && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// Anchors at the ends of a regular expression add nothing: the whole text must match anyway, and the engine passes
/// over them there.
fn regex_rule(regex: &str) -> String {
    format!("/(?:{})/", regex_to_lark(regex, ""))
}

/// The engine's message without the traces that it appends for its developers.
pub fn sentence(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let end = ["\n<backtrace>", "\n<state>", "\n<non-verbose/>"].iter().filter_map(|mark| text.find(mark)).min();
    text[..end.unwrap_or(text.len())].to_string()
}

/// Nothing under these locks can be left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
