//! A tokenizer.json, immutable and shared between threads.

use crate::abi::{caught, Failure};
use crate::tokenizer_limits;

pub struct Tokenizer {
    pub inner: tokenizers::Tokenizer,
    vocab_size: i32, // kept, because the library counts by building the whole vocabulary
}

impl Tokenizer {
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, Failure> {
        tokenizer_limits::check(json)?;
        tokenizer_limits::limit_searches();
        let unreadable = |error: tokenizers::Error| Failure::data_loss(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(unreadable)?;
        inner.with_truncation(None).map_err(unreadable)?;
        inner.with_padding(None);
        let vocab_size = inner.get_vocab_size(true) as i32;
        Ok(Tokenizer { inner, vocab_size })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>, Failure> {
        // encode_fast is encode without character offsets, which nobody here reads. A regular expression that runs into
        // its limit panics, because the library has no other way to say so.
        let encoded = caught(|| self.inner.encode_fast(text, add_special_tokens)).map_err(|panic| {
            match panic.contains("retry-limit") {
                true => Failure::invalid(
                    "splitting this text takes too many steps: a pattern in the model's tokenizer.json backtracks on it",
                ),
                false => Failure::internal(panic),
            }
        })?;
        let encoding =
            encoded.map_err(|error| Failure::invalid(format!("the tokenizer refuses this text: {error}")))?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
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
