//! A tokenizer.json, immutable and shared between threads.

use std::time::Duration;

use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};
use tokenizers::{Model, TokenizerImpl};

use crate::abi::{caught, Cancel, Failure};
use crate::meter::{self, Budget, Stopped};
use crate::pieces::Cutter;
use crate::special_tokens;
use crate::steps::Steps;
use crate::tokenizer_limits;

/// The longest text that is taken without a cut: the tokenizer needs some 150 bytes of memory for each byte. Words without
/// an end are shorter than the texts of a tokenizer that cannot be cut.
const MAX_WORD: usize = 1 << 20;
const MAX_WHOLE: usize = 4 << 20;

/// The budget for a text of so many bytes. Texts of digits between signs take some 300 bytes for
/// each byte; published tokenizers take up to 2 us for each.
fn encode_budget(size: usize) -> Budget {
    let cpu = Duration::from_secs(2) + Duration::from_micros(20) * size as u32;
    Budget { bytes: (64 << 20) + 512 * size, pieces: ANY, total_bytes: usize::MAX, cpu }
}

/// The same budget for ids. An engine decodes a few of each of its requests at a time, and does
/// nothing else meanwhile.
fn decode_budget(ids: usize) -> Budget {
    let cpu = Duration::from_millis(200) + Duration::from_micros(20) * ids as u32;
    Budget { bytes: (16 << 20) + (2 << 10) * ids, pieces: ANY, total_bytes: usize::MAX, cpu }
}

const ANY: usize = isize::MAX as usize;

#[repr(C)]
pub struct EncodeOptions {
    add_special_tokens: bool,
    max_tokens: usize,
    last_tokens: usize,
    plain: bool,
    cancel: Cancel,
}

type BpeTokenizer = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub struct Tokenizer {
    pub inner: tokenizers::Tokenizer,
    steps: Steps,
    cutter: Option<Cutter>,
    vocab_size: i32, // kept, because the library counts by building the whole vocabulary
}

/// The error for a panic of the library's regular expressions.
fn explain(panic: String) -> Failure {
    if panic.contains("retry-limit") {
        return Failure::invalid(
            "splitting this text takes too many steps: a pattern in the model's tokenizer.json backtracks on it",
        );
    }
    Failure::internal(panic)
}

/// Runs steps of the tokenizer. A regular expression that reaches its limit panics, because the
/// library has no other way to report it.
fn within<T>(budget: Budget, cancel: Cancel, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, Failure> {
    let too_much =
        |what: String| Failure::invalid(format!("the tokenizer takes more than {what} for this text: shorten it"));
    match caught(|| meter::within(budget, cancel, work), explain)? {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failure::invalid(format!("the tokenizer refuses this text: {error}"))),
        Err(Stopped::Cpu) => Err(too_much(format!("{:.1} s", budget.cpu.as_secs_f64()))),
        Err(Stopped::Cancelled(failure)) => Err(failure),
        Err(Stopped::Bytes | Stopped::Pieces | Stopped::TotalBytes) => {
            Err(too_much(format!("{} MiB of memory", budget.bytes >> 20)))
        }
    }
}

/// The special tokens before and after the text.
fn around(cutter: &Cutter, options: &EncodeOptions) -> (Vec<i32>, Vec<i32>) {
    let own = |ids: &[u32]| match options.add_special_tokens {
        true => ids.iter().map(|&id| id as i32).collect(),
        false => Vec::new(),
    };
    (own(&cutter.prefix), own(&cutter.suffix))
}

/// The first `size` bytes at most, of whole characters.
fn beginning(text: &str, size: usize) -> &str {
    let end = (0..=size.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

impl Tokenizer {
    /// `config`: what tokenizer_config.json holds, if there is one.
    pub fn from_json(json: &[u8], config: Option<&str>) -> Result<Tokenizer, Failure> {
        let is_bpe = tokenizer_limits::check(json)?;
        tokenizer_limits::limit_searches();
        let unreadable = |error: tokenizers::Error| Failure::data_loss(error.to_string());
        // The library would look for the kind in a tree of the whole vocabulary. Without the tree it cannot skip fields of
        // the model that it does not know.
        let mut inner: tokenizers::Tokenizer = match is_bpe.then(|| serde_json::from_slice::<BpeTokenizer>(json)) {
            Some(Ok(bpe)) => bpe.into(),
            _ => tokenizers::Tokenizer::from_bytes(json).map_err(unreadable)?,
        };
        inner.with_truncation(None).map_err(unreadable)?;
        inner.with_padding(None);
        let steps = Steps::new(&inner).map_err(unreadable)?;
        tokenizer_limits::probe(&inner, &steps)?;
        special_tokens::install(&mut inner, config)?;
        let is_new = |token: &&String| inner.get_model().token_to_id(token).is_none();
        let added = inner.get_added_vocabulary().get_vocab().keys().filter(is_new).count();
        let vocab_size = (inner.get_model().get_vocab_size() + added) as i32;
        let cutter = Cutter::new(&inner);
        Ok(Tokenizer { inner, steps, cutter, vocab_size })
    }

    pub fn encode(&self, text: &str, options: &EncodeOptions) -> Result<Vec<i32>, Failure> {
        options.cancel.check()?;
        match &self.cutter {
            Some(cutter) if options.last_tokens > 0 => self.encode_end(cutter, text, options),
            Some(cutter) => self.encode_pieces(cutter, text, options),
            None => {
                let mut ids = self.encode_limited(text, options.add_special_tokens, MAX_WHOLE, options)?;
                if options.last_tokens > 0 {
                    ids.drain(..ids.len().saturating_sub(options.last_tokens));
                }
                Ok(ids)
            }
        }
    }

    /// Where a text has many times the bytes of max_tokens tokens, its beginning alone has too many of them. With twice as
    /// many as fit, it does not matter how the place where it was cut is tokenised. Texts of more than `most` bytes are refused.
    fn encode_limited(
        &self,
        text: &str,
        add_special_tokens: bool,
        most: usize,
        options: &EncodeOptions,
    ) -> Result<Vec<i32>, Failure> {
        if options.last_tokens == 0 && text.len() / 32 > options.max_tokens {
            let start = beginning(text, (options.max_tokens * 16).min(most));
            let ids = self.encode_whole(start, add_special_tokens, options)?;
            if ids.len() / 2 > options.max_tokens {
                return Ok(ids);
            }
        }
        if text.len() > most {
            return Err(Failure::invalid(format!(
                "the text holds more than {most} bytes without a place where the tokenizer can split it: shorten it"
            )));
        }
        self.encode_whole(text, add_special_tokens, options)
    }

    fn encode_whole(&self, text: &str, special: bool, options: &EncodeOptions) -> Result<Vec<i32>, Failure> {
        let work = || self.steps.encode(&self.inner, text, special, options.plain);
        let encoding = within(encode_budget(text.len()), options.cancel, work)?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    fn encode_pieces(&self, cutter: &Cutter, text: &str, options: &EncodeOptions) -> Result<Vec<i32>, Failure> {
        let (prefix, suffix) = around(cutter, options);
        let mut ids = prefix;
        let mut start = 0;
        while start < text.len() && ids.len() <= options.max_tokens {
            options.cancel.check()?;
            let end = cutter.end_of_piece(text, start);
            ids.extend(self.encode_limited(&text[start..end], false, MAX_WORD, options)?);
            start = end;
        }
        ids.extend(suffix);
        Ok(ids)
    }

    /// Its last tokens, from the last piece backwards.
    fn encode_end(&self, cutter: &Cutter, text: &str, options: &EncodeOptions) -> Result<Vec<i32>, Failure> {
        let (prefix, suffix) = around(cutter, options);
        let mut pieces = vec![suffix];
        let mut size = pieces[0].len();
        let mut end = text.len();
        while end > 0 && size < options.last_tokens {
            options.cancel.check()?;
            let start = cutter.start_of_piece(text, end);
            pieces.push(self.encode_limited(&text[start..end], false, MAX_WORD, options)?);
            size += pieces[pieces.len() - 1].len();
            end = start;
        }
        if end == 0 {
            pieces.push(prefix);
        }
        let mut ids = Vec::new();
        for piece in pieces.into_iter().rev() {
            ids.extend(piece);
        }
        ids.drain(..ids.len().saturating_sub(options.last_tokens));
        Ok(ids)
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, Failure> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        within(decode_budget(ids.len()), Cancel::NEVER, || self.steps.decode(&self.inner, &ids, skip_special_tokens))
    }

    pub fn vocab_size(&self) -> i32 {
        self.vocab_size
    }

    pub fn token_id(&self, token: &str) -> i32 {
        self.inner.token_to_id(token).map_or(-1, |id| id as i32)
    }
}
