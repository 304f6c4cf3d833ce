//! A tokenizer in the form that the grammar engine needs: the bytes of every token, and canonical
//! tokenization of forced text.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokenizers::models::wordlevel::WordLevel;
use tokenizers::AddedToken;
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

/// Ids without a token up to the last one: some vocabularies leave a few out. Each takes room in every mask.
const MAX_GAPS: usize = 1 << 20;

/// The vocabulary has one id more than the tokenizer's last, the end of the text. Only the caller
/// knows a model's end ids (one, several, none, or a stop id of the request). An id that has no
/// token matches nothing.
pub fn vocabulary(tokenizer: &tokenizers::Tokenizer) -> Result<TokEnv, Failure> {
    let unusable = |why: String| Failure::precondition(format!("grammars need {why}"));
    let ids: BTreeSet<u32> = tokenizer.get_vocab(true).into_values().collect();
    let size = ids.last().map_or(0, |&last| last as usize + 1);
    if size - ids.len() > MAX_GAPS {
        let gaps = size - ids.len();
        return Err(unusable(format!(
            "a tokenizer with at most {MAX_GAPS} ids that have no token: this one has {gaps}"
        )));
    }
    let added = tokenizer.get_added_tokens_decoder();
    let is_control =
        |token: &AddedToken| token.special || (token.content.starts_with('<') && token.content.ends_with('>'));
    let mut words = vec![Vec::new(); size + 1];
    let mut plain = Vec::new();
    for id in ids {
        let Some(name) = tokenizer.id_to_token(id) else { continue };
        match added.get(&id) {
            Some(token) if is_control(token) => words[id as usize] = control_token(&name),
            _ => plain.push((id, name)),
        }
    }
    let bytes = ByteTokenizer::from_tokenizer(numbered(tokenizer, &plain)?)
        .map_err(|error| unusable(format!("a byte-level or byte-fallback tokenizer: {error}")))?;
    for ((id, name), word) in plain.into_iter().zip(bytes.token_bytes()) {
        // A token that was added need not spell its bytes as the others do.
        words[id as usize] = if word.is_empty() && added.contains_key(&id) { name.into_bytes() } else { word };
    }
    words[size] = control_token("<end of text>"); // spaces: no grammar can name it
    let trie = TokTrie::from(&TokRxInfo::new(size as u32 + 1, size as u32), &words);
    let mut tokenizer = tokenizer.clone();
    tokenizer.with_normalizer(bytes.hf_tokenizer.get_normalizer().cloned());
    tokenizer.with_pre_tokenizer(bytes.hf_tokenizer.get_pre_tokenizer().cloned());
    Ok(Arc::new(Vocabulary { trie, tokenizer }))
}

fn control_token(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

/// A tokenizer that spells as `tokenizer` does and has these tokens in their order: ByteTokenizer takes the number of
/// tokens for the end of their ids.
fn numbered(tokenizer: &tokenizers::Tokenizer, tokens: &[(u32, String)]) -> Result<tokenizers::Tokenizer, Failure> {
    let vocab = tokens.iter().zip(0..).map(|((_, name), number)| (name.clone(), number)).collect();
    let model = WordLevel::builder().vocab(vocab).build().map_err(|error| Failure::internal(error.to_string()))?;
    let mut numbered = tokenizers::Tokenizer::new(model);
    numbered.with_normalizer(tokenizer.get_normalizer().cloned());
    numbered.with_pre_tokenizer(tokenizer.get_pre_tokenizer().cloned());
    numbered.with_decoder(tokenizer.get_decoder().cloned());
    Ok(numbered)
}
