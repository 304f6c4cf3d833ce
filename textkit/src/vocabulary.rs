//! A tokenizer as the grammar engine sees it: the bytes of every token, and canonical tokenization of forced text.

use std::sync::Arc;

use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use toktrie_hf_tokenizers::ByteTokenizer;

use crate::abi::Failure;

/// Bytes of forced text that are tokenized. Only the first token is asked for, once a position: without a bound, a text of
/// n forced bytes takes n^2.
const MAX_FORCED: usize = 2_048;

struct Vocabulary {
    trie: TokTrie,
    tokenizer: tokenizers::Tokenizer,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let bytes = &bytes[..bytes.len().min(MAX_FORCED)];
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let ids = self.tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec());
            // Text that spells a special token stays text: the grammar asked for its characters.
            match ids {
                Ok(ids) if !ids.iter().any(|&id| self.trie.is_special_token(id)) => ids,
                _ => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}

/// The vocabulary has one id more than the tokenizer, its last: the end of the text. What a model uses for the end (one
/// id, several, none, or a stop id of the request) is the caller's knowledge.
pub fn vocabulary(tokenizer: &tokenizers::Tokenizer) -> Result<TokEnv, Failure> {
    let bytes = ByteTokenizer::from_tokenizer(tokenizer.clone()).map_err(|error| {
        Failure::precondition(format!("grammars need a byte-level or byte-fallback tokenizer: {error}"))
    })?;
    let mut words = bytes.token_bytes();
    let end = words.len() as TokenId;
    let mut name = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    name.extend_from_slice(b"<end of text>"); // spaces: no grammar can name it
    words.push(name);
    let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
    Ok(Arc::new(Vocabulary { trie, tokenizer: bytes.hf_tokenizer }))
}
