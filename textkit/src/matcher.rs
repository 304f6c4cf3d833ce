//! How far a text has come in its grammar, and which tokens may follow.

use std::sync::Arc;

use llguidance::TokenParser;
use toktrie::TokenId;

use crate::abi::Failure;
use crate::grammar::{sentence, Compiled};

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
}

impl Matcher {
    pub fn new(grammar: Arc<Compiled>, parser: TokenParser) -> Matcher {
        Matcher { grammar, parser: Some(parser), restore: None, text: Vec::new(), ahead: Vec::new() }
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
        self.retract(0);
        let mut rows = 0;
        loop {
            let row = &mut words[rows * stride..(rows + 1) * stride];
            let end = match self.mask(row) {
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
            if let Err(failure) = self.advance(token as TokenId) {
                return (rows, Err(failure));
            }
        }
    }

    /// Tokens that are now part of the text, the end not among them.
    pub fn commit(&mut self, tokens: &[i32]) -> Result<(), Failure> {
        let same = self.ahead.iter().zip(tokens).take_while(|(&ahead, &token)| ahead == token as TokenId).count();
        self.retract(same);
        for &token in &tokens[same..] {
            self.advance(token as TokenId)?;
        }
        self.text.append(&mut self.ahead);
        self.restore = None;
        Ok(())
    }

    /// Does something with the parser, if need be with a new one. A parser's limits (lexer states, fuel) count what was
    /// tried before, drafts too; one that has seen nothing but this text makes failure a property of the text.
    fn with_parser<T>(&mut self, call: impl Fn(&mut TokenParser) -> anyhow::Result<T>) -> Result<T, Failure> {
        if let Some(mut parser) = self.parser.take() {
            if let Ok(value) = caught(|| call(&mut parser)) {
                self.parser = Some(parser);
                return Ok(value);
            }
        }
        let mut parser = self.grammar.fresh();
        let value = caught(|| {
            for &token in self.text.iter().chain(&self.ahead) {
                parser.consume_token(token)?;
            }
            call(&mut parser)
        });
        let value = value.map_err(|error| {
            Failure::invalid(format!("the grammar is too complex to go on with: {}", sentence(&error)))
        })?;
        self.parser = Some(parser);
        Ok(value)
    }

    fn mask(&mut self, row: &mut [u32]) -> Result<End, Failure> {
        let mask = self.with_parser(|parser| {
            // The engine keeps the last mask under a key that two different states share after a roll-back.
            parser.invalidate_bias_cache();
            parser.compute_mask()
        })?;
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
        self.with_parser(|parser| parser.consume_token(token).map(|_| ()))?;
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
                self.ahead[..keep].iter().try_for_each(|&token| parser.consume_token(token).map(|_| ()))
            })
        };
        self.ahead.truncate(keep);
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        if let Some(parser) = self.parser.take() {
            self.grammar.give_back(parser);
        }
    }
}

/// The parser after `call`, if there was one and that went well.
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
