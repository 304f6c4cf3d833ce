//! Grammars for one tokenizer: from a request's specification to matchers, with a cache, because
//! services send the same few schemas again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::{regex_to_lark, TokenParser};

use crate::abi::{Cancel, Failure};
use crate::bounds;
use crate::compiler::Compiler;
use crate::gbnf;
use crate::matcher::Matcher;
use crate::meter;
use crate::schema;

/// Bytes of a grammar's text, or of all choices together. Compiling takes seconds somewhere above.
const MAX_TEXT: usize = 1 << 18;
const MAX_CHOICES: usize = 1 << 13;
/// Bytes by which a parser that is kept for others to begin with may be larger than a new one: each of them takes as much.
const MAX_LEARNED: isize = 2 << 20;
/// Notes on how a grammar was interpreted.
const ONE_OF: &str = "oneOf is taken as anyOf, where its alternatives overlap or cannot be told apart";
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Choice,
    Lark,
    Ebnf,
}

/// A grammar as its caller names it.
pub struct Source<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub choices: Vec<&'a str>,
    /// The grammar of the output before the text.
    pub lead: &'a str,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub kind: Kind,
    pub text: String,
    pub choices: Vec<String>,
    pub lead: String,
}

/// The caller's limits.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of all grammars and matchers together.
    pub memory: isize,
    pub time: Duration,
    /// Fails rather than wait for others that compile.
    pub at_once: bool,
    pub cancel: Cancel,
}

/// A parser, and its bytes as last measured.
pub struct Measured {
    pub parser: TokenParser,
    pub bytes: isize,
}

/// A parser at the start of its text that has served before. Others begin as copies of it: they
/// need not build its lexer's states again, and a grammar's states are stored once.
struct Warm {
    parser: TokenParser,
    states: usize,
    bytes: isize, // in `total`
    total: Arc<AtomicIsize>,
}

impl Drop for Warm {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A grammar ready to be matched.
pub struct Compiled {
    prototype: TokenParser,
    rolls_back: bool,
    explains: bool,
    warm: Mutex<Option<Arc<Warm>>>, // the one with most states
    notes: Vec<String>,
    last_use: AtomicU64,
    bytes: isize,            // the prototype's, and the key's
    total: Arc<AtomicIsize>, // of everything that the Grammars made and that still lives
}

impl Drop for Compiled {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Compiled {
    /// `bytes`: the prototype's and the key's, which are in `total` from here on.
    pub fn new(
        mut prototype: TokenParser,
        rolls_back: bool,
        explains: bool,
        mut notes: Vec<String>,
        bytes: isize,
        total: Arc<AtomicIsize>,
    ) -> Compiled {
        total.fetch_add(bytes, Ordering::Relaxed);
        if prototype.grammar_warnings().iter().any(|warning| warning.contains("oneOf")) {
            notes.push(ONE_OF.to_string());
        }
        let (warm, last_use) = (Mutex::default(), AtomicU64::new(0));
        Compiled { prototype, rolls_back, explains, warm, notes, last_use, bytes, total }
    }

    pub fn rolls_back(&self) -> bool {
        self.rolls_back
    }

    /// Whether the grammar's author knows the engine's terms.
    pub fn explains(&self) -> bool {
        self.explains
    }

    /// Bytes of all grammars and matchers.
    pub fn total(&self) -> &AtomicIsize {
        &self.total
    }

    /// A parser at the start of the text that shares nothing with others: matchers run in parallel. `warm`: with the
    /// states that others have built, and their bytes.
    fn take(&self, warm: bool) -> Measured {
        let from = lock(&self.warm).clone().filter(|_| warm);
        let before = meter::bytes();
        let parser = from.as_ref().map_or(&self.prototype, |from| &from.parser).deep_clone();
        let bytes = meter::bytes() - before;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        Measured { parser, bytes }
    }

    pub fn fresh(&self) -> TokenParser {
        self.prototype.deep_clone()
    }

    /// Keeps a parser for others to begin with, where it knows more states than the one that is kept, or drops it.
    pub fn give_back(&self, used: Measured) {
        let Measured { mut parser, mut bytes } = used;
        let states = parser.parser.lexer_stats().num_states;
        let knows_more = |warm: &Option<Arc<Warm>>| warm.as_ref().is_none_or(|warm| warm.states < states);
        if self.rolls_back && knows_more(&lock(&self.warm)) {
            let before = meter::bytes();
            let is_reset = parser.reset().is_ok();
            let freed = before - meter::bytes();
            bytes -= freed;
            self.total.fetch_sub(freed, Ordering::Relaxed);
            let mut warm = lock(&self.warm);
            if is_reset && bytes - self.bytes <= MAX_LEARNED && knows_more(&warm) {
                let replaced = warm.replace(Arc::new(Warm { parser, states, bytes, total: self.total.clone() }));
                drop(warm);
                drop(replaced); // takes a while
                return;
            }
        }
        self.discard(Measured { parser, bytes });
    }

    fn discard(&self, used: Measured) {
        drop(used.parser);
        self.total.fetch_sub(used.bytes, Ordering::Relaxed);
    }

    fn discard_warm(&self) {
        let warm = lock(&self.warm).take();
        drop(warm); // takes a while
    }
}

pub struct Grammars {
    compiler: Arc<Compiler>,
    cache: Mutex<HashMap<Key, Arc<Compiled>>>,
    uses: AtomicU64,
}

impl Grammars {
    pub fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Grammars, Failure> {
        let compiler = Arc::new(Compiler::new(tokenizer)?);
        Ok(Grammars { compiler, cache: Mutex::default(), uses: AtomicU64::new(0) })
    }

    /// Bytes of everything that lives or is being compiled, grammars in the cache, and compilations under way.
    pub fn usage(&self) -> (u64, u64, u64) {
        let bytes = self.compiler.total().load(Ordering::Relaxed) + self.compiler.running();
        (u64::try_from(bytes).unwrap_or(0), lock(&self.cache).len() as u64, self.compiler.compiling() as u64)
    }

    /// Whether compile() neither compiles nor waits: the grammar is in the cache, or is refused for
    /// its size.
    pub fn is_quick(&self, source: &Source) -> bool {
        let Ok(key) = Key::new(source) else { return true };
        lock(&self.cache).contains_key(&key)
    }

    pub fn compile(&self, source: &Source, limits: Limits) -> Result<Matcher, Failure> {
        self.start(&Key::new(source)?, limits)
    }

    /// The notes on a grammar's interpretation. The grammar is compiled as by `compile`, and kept.
    pub fn check(&self, source: &Source, limits: Limits) -> Result<String, Failure> {
        let key = Key::new(source)?;
        Ok(self.find(&key, limits)?.notes.join("\n"))
    }

    fn find(&self, key: &Key, limits: Limits) -> Result<Arc<Compiled>, Failure> {
        let known = self.known(key); // before the room is made, which what is held here is not dropped for
        self.make_room(limits.memory)?;
        let compiled = match known {
            Some(compiled) => compiled,
            None => {
                let place = self.compiler.place(limits)?;
                match self.known(key) {
                    Some(compiled) => compiled, // since this call waited
                    None => {
                        // A call that has waited for the place finds the grammar.
                        let (compiled, _place) = Compiler::compile_in_time(place, key, limits)?;
                        lock(&self.cache).entry(key.clone()).or_insert(compiled).clone()
                    }
                }
            }
        };
        compiled.last_use.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Ok(compiled)
    }

    fn start(&self, key: &Key, limits: Limits) -> Result<Matcher, Failure> {
        let compiled = self.find(key, limits)?;
        let first = compiled.take(self.compiler.total().load(Ordering::Relaxed) <= limits.memory / 2);
        if let Err(failure) = self.make_room(limits.memory) {
            compiled.discard(first);
            return Err(failure);
        }
        Ok(Matcher::new(compiled, first, limits.memory))
    }

    fn known(&self, key: &Key) -> Option<Arc<Compiled>> {
        lock(&self.cache).get(key).cloned()
    }

    /// Evicts unused grammars until half of the memory is free. Grammars in use stay, and no more
    /// are added when they take all.
    fn make_room(&self, memory: isize) -> Result<(), Failure> {
        let total = || self.compiler.total().load(Ordering::Relaxed);
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
            used.iter().for_each(|compiled| compiled.discard_warm());
        }
        if total() > memory {
            return Err(Failure::exhausted(
                "The grammars of running requests take all the memory that there is for grammars: try again later.",
            ));
        }
        Ok(())
    }
}

impl Key {
    /// An error where it is larger than is accepted.
    fn new(source: &Source) -> Result<Key, Failure> {
        let Source { kind, text, ref choices, lead } = *source;
        let size = text.len() + lead.len() + choices.iter().map(|choice| choice.len()).sum::<usize>();
        if size > MAX_TEXT {
            return Err(Failure::invalid(format!("the grammar has {size} bytes: at most {MAX_TEXT} are accepted")));
        }
        if choices.len() > MAX_CHOICES {
            let count = choices.len();
            return Err(Failure::invalid(format!("there are {count} choices: at most {MAX_CHOICES} are accepted")));
        }
        let choices = choices.iter().map(|choice| choice.to_string()).collect();
        Ok(Key { kind, text: text.into(), choices, lead: lead.into() })
    }

    pub fn bytes(&self) -> isize {
        let choices: usize = self.choices.iter().map(|choice| choice.len() + size_of::<String>()).sum();
        (self.text.len() + self.lead.len() + choices + size_of::<Key>()) as isize
    }
}

/// The grammar, and the notes on its interpretation. `tried`: as of `schema::prepare_lark`.
pub fn top_level(key: &Key, tried: bool) -> Result<(TopLevelGrammar, Vec<String>), Failure> {
    let lead = schema::prepare_lark(&key.lead, tried)?;
    let from_lark = |text: String| (TopLevelGrammar::from_lark(text), Vec::new());
    let text = match key.kind {
        Kind::JsonObject | Kind::JsonSchema => {
            let schema =
                schema::prepare(if key.kind == Kind::JsonObject { r#"{"type": "object"}"# } else { &key.text })?;
            if tried {
                schema::compiles(&schema)?;
            }
            if key.lead.is_empty() {
                return Ok((TopLevelGrammar::from_json_schema(schema), Vec::new()));
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
        Kind::Lark => {
            let lark = schema::prepare_lark(&key.text, tried)?;
            return Ok((TopLevelGrammar::from_lark(lark.text), lark.notes));
        }
        Kind::Ebnf => match gbnf::convert(&key.text)? {
            gbnf::Converted::Regex(regex) => {
                bounds::check_regex(&regex)?;
                regex_rule(&regex)
            }
            gbnf::Converted::Lark(lark) => return Ok(from_lark(lark)),
        },
    };
    let (grammar, _) = from_lark(match lead.text.as_str() {
        "" => format!("start: {text}\n"),
        whole if whole.starts_with("whole:") => format!("start: whole\ntext: {text}\n{whole}"),
        lead => format!("start: lead text\ntext: {text}\n{lead}"),
    });
    Ok((grammar, lead.notes))
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

/// A panic under these locks leaves no half-done state.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
