//! A text's progress in its grammar, and the tokens that may follow.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use llguidance::earley::BiasComputer;
use llguidance::earley::ParserRecognizer;
use llguidance::TokenParser;
use toktrie::{SimpleVob, TokTrie, TokenId};

use crate::abi::Failure;
use crate::grammar::{sentence, Compiled, Measured};
use crate::meter;
use crate::stop::Stop;

/// Whether the text may end at a position.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    No = 0,
    May = 1,
    Must = 2, // nothing else may follow
}

/// State after the committed tokens, and after some drafted ones that may turn out to be committed.
pub struct Matcher {
    grammar: Arc<Compiled>,
    parser: Option<TokenParser>,  // after text and ahead; None: to be made afresh
    restore: Option<TokenParser>, // after text, for grammars that cannot roll back
    text: Vec<TokenId>,
    ahead: Vec<TokenId>,
    stop: Arc<Stop>,
    bytes: isize,  // that this was seen to take, up to the call that runs
    before: isize, // the meter at the start of that call
    memory: isize, // that all grammars and matchers may take
}

/// A matcher that takes less memory than this may continue where memory is short.
const SMALL: isize = 4 << 20;

/// Computes nothing. The engine gives the lexer its fuel and its limit of states when it computes a mask, but not when it
/// follows forced text, which can be as long as a repetition says: asked for this mask first, it has them then too.
struct Limits<'a>(&'a TokTrie);

impl BiasComputer for Limits<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }
    fn trie(&self) -> &TokTrie {
        self.0
    }
}

fn set_limits(parser: &mut TokenParser) {
    let tokens = parser.token_env.clone();
    parser.parser.compute_bias(&Limits(tokens.tok_trie()), &[]);
    // The engine keeps the last mask; its key is one that two different states share after a roll-back, too.
    parser.parser.invalidate_bias_cache();
}

/// The mask of the position where the parser stands; the vocabulary's last id is the end.
pub fn compute_mask(parser: &mut TokenParser) -> anyhow::Result<SimpleVob> {
    set_limits(parser);
    let mask = parser.compute_mask()?;
    // Where forced text ran into a limit, the engine tells the next call only.
    match parser.parser.get_error() {
        Some(error) => Err(anyhow::anyhow!(error.message())),
        None => Ok(mask),
    }
}

fn consume(parser: &mut TokenParser, token: TokenId) -> anyhow::Result<()> {
    parser.consume_token(token).map(|_| ())
}

impl Matcher {
    /// `memory`: bytes that all grammars and matchers may take together.
    pub fn new(grammar: Arc<Compiled>, first: Measured, memory: isize) -> Matcher {
        let Measured { parser, bytes } = first;
        let (restore, text, ahead) = (None, Vec::new(), Vec::new());
        let stop = Arc::default();
        Matcher { grammar, parser: Some(parser), restore, text, ahead, stop, bytes, before: 0, memory }
    }

    /// Counts the memory of `call`.
    fn metered<T>(&mut self, call: impl FnOnce(&mut Matcher) -> T) -> T {
        self.before = meter::bytes();
        let value = call(self);
        let grown = meter::bytes() - self.before;
        self.bytes += grown;
        self.grammar.total().fetch_add(grown, Ordering::Relaxed);
        value
    }

    /// Whether there is memory to continue. A parser takes more with each text that it checks.
    fn has_room(&self) -> bool {
        let grown = meter::bytes() - self.before;
        self.bytes + grown <= SMALL || self.grammar.total().load(Ordering::Relaxed) + grown <= self.memory
    }

    /// Ends running calls on this matcher, now and later.
    pub fn stop(&self) -> Arc<Stop> {
        self.stop.clone()
    }

    /// Row i of `words` (rows of `stride` words) becomes the mask of the position after `drafted[..i]`, `ends[i]` whether
    /// the text may end there. Stops after the position of the first drafted token that the grammar refuses, or where
    /// the text must end; returns the number of rows, with a failure those before it.
    pub fn masks(
        &mut self,
        drafted: &[i32],
        words: &mut [u32],
        stride: usize,
        ends: &mut [u8],
    ) -> (usize, Result<(), Failure>) {
        self.metered(|matcher| {
            matcher.retract(0);
            let mut rows = 0;
            loop {
                let row = &mut words[rows * stride..(rows + 1) * stride];
                let end = match matcher.mask(row) {
                    Ok(end) => end,
                    Err(failure) => return (rows, Err(failure)),
                };
                ends[rows] = end as u8;
                rows += 1;
                let Some(&token) = drafted.get(rows - 1) else { return (rows, Ok(())) };
                let bit = token as usize;
                let allowed = token >= 0 && bit / 32 < stride && (row[bit / 32] >> (bit % 32)) & 1 == 1;
                if !allowed {
                    return (rows, Ok(()));
                }
                if let Err(failure) = matcher.advance(token as TokenId) {
                    return (rows, Err(failure));
                }
            }
        })
    }

    /// Commits tokens to the text, without the end.
    pub fn commit(&mut self, tokens: &[i32]) -> Result<(), Failure> {
        self.metered(|matcher| matcher.take_in(tokens))
    }

    fn take_in(&mut self, tokens: &[i32]) -> Result<(), Failure> {
        let same = self.ahead.iter().zip(tokens).take_while(|(&ahead, &token)| ahead == token as TokenId).count();
        self.retract(same);
        for &token in &tokens[same..] {
            self.advance(token as TokenId)?;
        }
        self.text.append(&mut self.ahead);
        self.restore = None;
        Ok(())
    }

    /// Calls a function with the parser, made anew if necessary. A parser's limits (lexer states,
    /// fuel) count what was tried before, including drafts; a parser that has seen only this text
    /// makes failure a property of the text.
    fn with_parser<T>(&mut self, call: impl Fn(&mut TokenParser) -> anyhow::Result<T>) -> Result<T, Failure> {
        if !self.has_room() {
            self.parser = None;
            self.restore = None;
            return Err(Failure::exhausted("there is no memory left for this request's grammar: try again later"));
        }
        if let Some(mut parser) = self.parser.take() {
            self.stop.watch(&mut parser);
            if let Ok(value) = caught(|| call(&mut parser)) {
                self.parser = Some(parser);
                return Ok(value);
            }
        }
        if self.stop.is_stopped() {
            return Err(Failure::invalid("the matcher was stopped"));
        }
        let mut parser = self.grammar.fresh();
        self.stop.watch(&mut parser);
        let value = caught(|| {
            for &token in self.text.iter().chain(&self.ahead) {
                set_limits(&mut parser);
                consume(&mut parser, token)?;
            }
            call(&mut parser)
        });
        let value = value.map_err(|error| {
            let why = if self.grammar.explains() { format!(": {}", sentence(&error)) } else { String::new() };
            Failure::invalid(format!("the grammar is too complex to go on with{why}"))
        })?;
        self.parser = Some(parser);
        Ok(value)
    }

    fn mask(&mut self, row: &mut [u32]) -> Result<End, Failure> {
        let mask = self.with_parser(compute_mask)?;
        let end = mask.len() - 1; // the vocabulary's last id
        let complete = mask.is_allowed(end as TokenId);
        let mask = mask.as_slice();
        let given = mask.len().min(row.len());
        row[..given].copy_from_slice(&mask[..given]);
        row[given..].fill(0);
        if let Some(word) = row.get_mut(end / 32) {
            *word &= !(1 << (end % 32));
        }
        Ok(match (complete, row.iter().all(|&word| word == 0)) {
            (false, false) => End::No,
            (true, false) => End::May,
            (true, true) => End::Must,
            (false, true) => return Err(Failure::invalid("the grammar leaves no token of the vocabulary allowed")),
        })
    }

    fn advance(&mut self, token: TokenId) -> Result<(), Failure> {
        if self.ahead.is_empty() && !self.grammar.rolls_back() {
            self.restore = self.parser.clone();
        }
        self.with_parser(|parser| consume(parser, token))?;
        self.ahead.push(token);
        Ok(())
    }

    /// Goes back to the state after `keep` of the tokens ahead.
    fn retract(&mut self, keep: usize) {
        let drop = self.ahead.len() - keep;
        if drop == 0 {
            return;
        }
        self.parser = if self.grammar.rolls_back() {
            after(self.parser.take(), |parser| parser.rollback(drop))
        } else {
            after(self.restore.clone(), |parser| {
                self.ahead[..keep].iter().try_for_each(|&token| consume(parser, token))
            })
        };
        self.ahead.truncate(keep);
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        self.stop.forget();
        let stopped = self.stop.is_stopped();
        let before = meter::bytes();
        (self.restore, self.text, self.ahead) = (None, Vec::new(), Vec::new());
        if stopped {
            self.parser = None;
        }
        let freed = before - meter::bytes();
        self.grammar.total().fetch_sub(freed, Ordering::Relaxed);
        let bytes = self.bytes - freed;
        match self.parser.take() {
            Some(parser) => self.grammar.give_back(Measured { parser, bytes }),
            None => _ = self.grammar.total().fetch_sub(bytes, Ordering::Relaxed),
        }
    }
}

/// The parser after `call`, if there was one and the call succeeded.
fn after(
    parser: Option<TokenParser>,
    call: impl FnOnce(&mut TokenParser) -> anyhow::Result<()>,
) -> Option<TokenParser> {
    let mut parser = parser?;
    caught(|| call(&mut parser)).ok().map(|()| parser)
}

fn caught<T>(call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(call))
}
