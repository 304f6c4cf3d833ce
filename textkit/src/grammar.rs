//! Grammars for one tokenizer: from what a request says to matchers, with a cache, because services send the same few
//! schemas again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{regex_to_lark, ParserFactory, TokenParser};
use serde_json::{json, Value as Json};

use crate::abi::Failure;
use crate::gbnf;
use crate::matcher::Matcher;
use crate::vocabulary::vocabulary;

/// Bytes of a grammar's text, or of all choices together. Compiling takes seconds somewhere above.
const MAX_TEXT: usize = 1 << 18;
const MAX_CHOICES: usize = 1 << 13;
/// Grammars kept compiled, and matchers kept warm for each: a warm one has its lexer's states built.
const MAX_CACHED: usize = 64;
const MAX_IDLE: usize = 16;
/// Lexer states above which a matcher is not kept (one takes one to two kilobytes).
const MAX_IDLE_STATES: usize = 4_000;
/// Lexer states above which a request fails: some 50 MB.
const MAX_STATES: usize = 30_000;
/// Grammars nest deeply where no limit below counts; their compilation recurses.
const STACK: usize = 1 << 26;
/// What may stand between the tokens of JSON: a space, or a line break with its indentation. Without a bound a weak
/// model can write spaces for ever and never break the schema.
const JSON_WHITESPACE: &str = r"[ ]|\r?\n([ ]{0,32}|\t{0,8})";

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

/// A grammar ready to be matched, and matchers that have served before.
pub struct Compiled {
    prototype: TokenParser,
    rolls_back: bool,
    idle: Mutex<Vec<TokenParser>>,
    last_use: AtomicU64,
}

impl Compiled {
    pub fn rolls_back(&self) -> bool {
        self.rolls_back
    }

    /// A parser at the start of the text that shares nothing with others: matchers run in parallel.
    fn take(&self) -> TokenParser {
        lock(&self.idle).pop().unwrap_or_else(|| self.fresh())
    }

    pub fn fresh(&self) -> TokenParser {
        self.prototype.deep_clone()
    }

    pub fn give_back(&self, mut parser: TokenParser) {
        if !self.rolls_back || parser.parser.lexer_stats().num_states > MAX_IDLE_STATES || parser.reset().is_err() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push(parser);
        }
    }
}

pub struct Grammars {
    factory: ParserFactory,
    cache: Mutex<HashMap<Key, Arc<Compiled>>>,
    uses: AtomicU64,
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
        Ok(Grammars { factory, cache: Mutex::default(), uses: AtomicU64::new(0) })
    }

    pub fn compile(&self, kind: Kind, text: &str, choices: &[&str], lead: &str) -> Result<Matcher, Failure> {
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
        let known = lock(&self.cache).get(&key).cloned();
        let compiled = match known {
            Some(compiled) => compiled,
            None => self.remember(&key, Arc::new(self.compile_on_large_stack(&key)?)),
        };
        compiled.last_use.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let parser = compiled.take();
        Ok(Matcher::new(compiled, parser))
    }

    /// Two threads may have compiled the same text at once: the first one's is kept.
    fn remember(&self, key: &Key, compiled: Arc<Compiled>) -> Arc<Compiled> {
        let mut cache = lock(&self.cache);
        if cache.len() >= MAX_CACHED && !cache.contains_key(key) {
            let oldest = cache.iter().min_by_key(|(_, compiled)| compiled.last_use.load(Ordering::Relaxed));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                cache.remove(&oldest);
            }
        }
        cache.entry(key.clone()).or_insert(compiled).clone()
    }

    fn compile_on_large_stack(&self, key: &Key) -> Result<Compiled, Failure> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || self.compile_now(key));
            let thread = thread.map_err(|error| Failure::internal(format!("no thread to compile in: {error}")))?;
            thread.join().unwrap_or_else(|_| Err(Failure::internal("compiling the grammar failed")))
        })
    }

    fn compile_now(&self, key: &Key) -> Result<Compiled, Failure> {
        let grammar = top_level(key)?;
        let mut prototype = self.factory.create_parser(grammar).map_err(|error| Failure::invalid(sentence(&error)))?;
        prototype.start_without_prompt();
        let rolls_back = prototype.parser.grammar().lexer_spec().can_rollback();
        let compiled = Compiled { prototype, rolls_back, idle: Mutex::default(), last_use: AtomicU64::new(0) };
        // A grammar that no text satisfies shows itself only when it is used.
        let mut first = compiled.take();
        first.compute_mask().map_err(|error| match first.stop_reason() {
            llguidance::api::StopReason::NoExtensionBias => Failure::invalid("no text satisfies the grammar"),
            _ => Failure::invalid(sentence(&error)),
        })?;
        compiled.give_back(first);
        Ok(compiled)
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
        Kind::Regex => regex_rule(&key.text),
        Kind::Choice => {
            if key.choices.is_empty() {
                return Err(Failure::invalid("there are no choices"));
            }
            let choices: Vec<String> = key.choices.iter().map(|choice| gbnf::escaped(choice)).collect();
            regex_rule(&choices.join("|"))
        }
        Kind::Lark | Kind::Ebnf if !key.lead.is_empty() => {
            return Err(Failure::invalid("it says itself what its text begins with, so nothing can precede it"));
        }
        Kind::Lark => return Ok(TopLevelGrammar::from_lark(key.text.clone())),
        Kind::Ebnf => match gbnf::convert(&key.text)? {
            gbnf::Converted::Regex(regex) => regex_rule(&regex),
            gbnf::Converted::Lark(lark) => return Ok(TopLevelGrammar::from_lark(lark)),
        },
    };
    Ok(TopLevelGrammar::from_lark(match key.lead.as_str() {
        "" => format!("start: {text}\n"),
        lead => format!("start: lead text\ntext: {text}\n{lead}"),
    }))
}

/// The schema with the whitespace rule, unless it brings its own (`x-guidance`).
fn json_schema(text: &str) -> Result<Json, Failure> {
    let mut schema: Json =
        serde_json::from_str(text).map_err(|error| Failure::invalid(format!("the schema is not JSON: {error}")))?;
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
