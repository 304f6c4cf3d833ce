//! Where a long text can be cut so that the ids of its pieces, one after the other, are those of the whole. That is certain only for
//! tokenizers of known form; of the others a text stays whole.

use serde_json::Value as Json;
use tokenizers::{ModelWrapper, Tokenizer};

/// The approximate bytes of a piece; the tokenizer takes some 150 bytes of memory for each of them.
const PIECE: usize = 64 << 10;

/// Patterns that split text into words. None of them, nor that of GPT-2 in ByteLevel, has a match in which a letter or a
/// digit is followed by white space or by a sign other than an apostrophe, looks behind where it starts, or looks further
/// ahead than at what follows white space. So a match ends at every such place, whatever stands around it.
const PATTERNS: [&str; 7] = [
    // Qwen2, Qwen3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen3.5
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // gpt-oss
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // DeepSeek-V3, which splits three times
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Characters that may follow a cut: no normalization joins them with a letter before them.
const SIGNS: &str = " \n\r\t.,;:!?\"()[]{}<>|/\\=+*&%$#@~`^_-、。，！？；：「」（）";

/// How texts of one tokenizer are cut.
pub struct Cutter {
    signs: Vec<char>,
    /// The post-processor's tokens before and after a text.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
}

impl Cutter {
    /// None if cutting is not certain to be correct.
    pub fn new(tokenizer: &Tokenizer) -> Option<Cutter> {
        if !splits_words(tokenizer) || !matches!(tokenizer.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_none())
        {
            return None;
        }
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        if !composes_only(&normalizer) {
            return None;
        }
        let mut signs: Vec<char> = SIGNS.chars().collect();
        for token in tokenizer.get_added_tokens_decoder().values() {
            // The characters beside such a token decide whether it is one.
            if token.single_word || token.rstrip {
                return None;
            }
            // A cut must not fall into one.
            let inside: Vec<char> = token.content.chars().skip(1).collect();
            signs.retain(|sign| !inside.contains(sign));
        }
        let ids = |special| Some(tokenizer.encode_fast("a", special).ok()?.get_ids().to_vec());
        let (plain, around) = (ids(false)?, ids(true)?);
        let start = around.windows(plain.len().max(1)).position(|window| window == plain)?;
        let suffix = around[start + plain.len()..].to_vec();
        Some(Cutter { signs, prefix: around[..start].to_vec(), suffix })
    }

    /// The end of the piece that begins at `start`.
    pub fn end_of_piece(&self, text: &str, start: usize) -> usize {
        if text.len() - start <= PIECE {
            return text.len();
        }
        let from = floor_char_boundary(text, start + PIECE);
        let mut before = text[..from].chars().next_back();
        for (offset, c) in text[from..].char_indices() {
            if self.is_cut(before, c) {
                return from + offset;
            }
            before = Some(c);
        }
        text.len()
    }

    /// The start of the piece that ends at `end`.
    pub fn start_of_piece(&self, text: &str, end: usize) -> usize {
        if end <= PIECE {
            return 0;
        }
        let upto = floor_char_boundary(text, end - PIECE);
        let mut after = text[upto..].chars().next();
        for (offset, c) in text[..upto].char_indices().rev() {
            if after.is_some_and(|after| self.is_cut(Some(c), after)) {
                return offset + c.len_utf8();
            }
            after = Some(c);
        }
        0
    }

    fn is_cut(&self, before: Option<char>, after: char) -> bool {
        before.is_some_and(is_word) && self.signs.contains(&after)
    }
}

/// Letters and digits without doubt: some only, of every form of normalization and every version of Unicode.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ſ' | 'Σ'..='Ω' | 'α'..='ω' | 'А'..='я' | 'א'..='ת' | 'ا'..='غ')
        || matches!(c, 'ف'..='ي' | 'क'..='ह' | 'ก'..='ฮ' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='龥' | '가'..='힣')
}

fn floor_char_boundary(text: &str, index: usize) -> usize {
    (0..=index).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

fn splits_words(tokenizer: &Tokenizer) -> bool {
    let Ok(json) = serde_json::to_value(tokenizer.get_pre_tokenizer()) else { return false };
    let known = |step: &Json| match step["type"].as_str() {
        Some("ByteLevel") => step["add_prefix_space"] == Json::Bool(false),
        Some("Split") => {
            let pattern = step["pattern"]["Regex"].as_str();
            step["behavior"] == "Isolated"
                && step["invert"] == Json::Bool(false)
                && pattern.is_some_and(|pattern| PATTERNS.contains(&pattern))
        }
        _ => false,
    };
    let splits = |step: &Json| step["type"] == "Split" || step["use_regex"] == Json::Bool(true);
    match json["type"].as_str() {
        Some("Sequence") => {
            let steps = json["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            steps.iter().all(known) && steps.iter().any(splits)
        }
        _ => known(&json) && splits(&json),
    }
}

/// No normalization, or one that only composes characters.
fn composes_only(normalizer: &Json) -> bool {
    match normalizer["type"].as_str() {
        None => normalizer.is_null(),
        Some("NFC") => true,
        Some("Sequence") => normalizer["normalizers"].as_array().is_some_and(|steps| steps.iter().all(composes_only)),
        Some(_) => false,
    }
}
