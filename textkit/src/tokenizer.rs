//! A tokenizer.json, immutable and shared between threads.

use crate::abi::{caught, Cancel, Failure};
use crate::pieces::Cutter;
use crate::special_tokens;
use crate::tokenizer_limits;
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

/// The longest text that is taken without a cut: the tokenizer needs some 150 bytes of memory for each byte. Words without
/// an end are shorter than the texts of a tokenizer that cannot be cut.
const MAX_WORD: usize = 1 << 20;
const MAX_WHOLE: usize = 4 << 20;

#[repr(C)]
pub struct EncodeOptions {
    add_special_tokens: bool,
    max_tokens: usize,
    last_tokens: usize,
    plain: bool,
    cancel: Cancel,
}

pub struct Tokenizer {
    pub inner: tokenizers::Tokenizer,
    cutter: Option<Cutter>,
    vocab_size: i32, // kept, because the library counts by building the whole vocabulary
}

fn append(ids: &mut Vec<i32>, more: Vec<i32>) -> Result<(), Failure> {
    ids.try_reserve(more.len()).map_err(|_| Failure::out_of_memory("the list of token ids"))?;
    ids.extend(more);
    Ok(())
}

/// What a panic of the library's regular expressions means.
fn explain(panic: String) -> Failure {
    if panic.contains("retry-limit") {
        return Failure::invalid(
            "splitting this text takes too many steps: a pattern in the model's tokenizer.json backtracks on it",
        );
    }
    match panic.contains("fail to memory allocation") {
        true => Failure::out_of_memory("splitting this text"),
        false => Failure::internal(panic),
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
        tokenizer_limits::check(json)?;
        tokenizer_limits::limit_searches();
        let unreadable = |error: tokenizers::Error| Failure::data_loss(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(unreadable)?;
        inner.with_truncation(None).map_err(unreadable)?;
        inner.with_padding(None);
        special_tokens::install(&mut inner, config)?;
        let vocab_size = inner.get_vocab_size(true) as i32;
        let cutter = Cutter::new(&inner);
        Ok(Tokenizer { inner, cutter, vocab_size })
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
            let ids = self.encode_whole(start, add_special_tokens, options.plain)?;
            if ids.len() / 2 > options.max_tokens {
                return Ok(ids);
            }
        }
        if text.len() > most {
            return Err(Failure::invalid(format!(
                "the text holds more than {most} bytes without a place where the tokenizer can split it: shorten it"
            )));
        }
        self.encode_whole(text, add_special_tokens, options.plain)
    }

    fn encode_whole(&self, text: &str, add_special_tokens: bool, plain: bool) -> Result<Vec<i32>, Failure> {
        // encode_fast is encode without character offsets, which nobody here reads. A regular expression that runs into
        // its limit panics, because the library has no other way to say so.
        let encoded = match plain {
            true => caught(|| self.encode_plain(text), explain)?,
            false => caught(|| self.inner.encode_fast(text, add_special_tokens), explain)?,
        };
        let encoding =
            encoded.map_err(|error| Failure::invalid(format!("the tokenizer refuses this text: {error}")))?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    /// The library's steps but for its search for added tokens, which cannot be left out of encode_fast.
    fn encode_plain(&self, text: &str) -> tokenizers::Result<tokenizers::Encoding> {
        let mut parts = PreTokenizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            parts.normalize(|part| normalizer.normalize(part))?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        parts.tokenize(|part| self.inner.get_model().tokenize(part.get()))?;
        parts.into_encoding(None, 0, OffsetType::None)
    }

    fn encode_pieces(&self, cutter: &Cutter, text: &str, options: &EncodeOptions) -> Result<Vec<i32>, Failure> {
        let (prefix, suffix) = around(cutter, options);
        let mut ids = prefix;
        let mut start = 0;
        while start < text.len() && ids.len() <= options.max_tokens {
            options.cancel.check()?;
            let end = cutter.end_of_piece(text, start);
            append(&mut ids, self.encode_limited(&text[start..end], false, MAX_WORD, options)?)?;
            start = end;
        }
        append(&mut ids, suffix)?;
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
            append(&mut ids, piece)?;
        }
        ids.drain(..ids.len().saturating_sub(options.last_tokens));
        Ok(ids)
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, Failure> {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner
            .decode(&ids, skip_special_tokens)
            .map_err(|error| Failure::internal(format!("the tokenizer cannot decode these ids: {error}")))
    }

    pub fn vocab_size(&self) -> i32 {
        self.vocab_size
    }

    pub fn token_id(&self, token: &str) -> i32 {
        self.inner.token_to_id(token).map_or(-1, |id| id as i32)
    }
}
