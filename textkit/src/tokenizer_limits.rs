//! What a tokenizer.json may ask for. It comes with the weights, and some of what it can say makes loading it, or the
//! first text, take hours or all memory.

use std::sync::Once;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::abi::Failure;

/// The library's time to add tokens grows with the square of their number: 65,536, as models of speech have, take some
/// 15 s. Most models have fewer than 10,000.
const MAX_ADDED_TOKENS: usize = 80_000;
/// Bytes of their texts together. Each byte is a state of the automaton that looks for them.
const MAX_ADDED_BYTES: usize = 2 << 20;
/// How many bytes one byte may become. A charsmap that knows the longest compatibility character (33 bytes), and then
/// a replacement, come to some 130.
const MAX_GROWTH: f64 = 256.0;
/// Retries of a regular expression in one search, some 10 ns each. One match may take 10 million, onig's own default:
/// patterns that look for a line break behind spaces try as many as there are spaces.
const MAX_RETRIES: u64 = 30_000_000;

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    content: String,
}

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    decoder: Json,
}

/// Looks at the file before the library builds anything from it.
pub fn check(json: &[u8]) -> Result<(), Failure> {
    let parts: Parts = serde_json::from_slice(json).map_err(|error| Failure::data_loss(error.to_string()))?;
    if parts.added_tokens.len() > MAX_ADDED_TOKENS {
        return Err(Failure::data_loss(format!(
            "it has {} added_tokens, and {MAX_ADDED_TOKENS} are the most that can be loaded: put them into the model's \
             vocabulary",
            parts.added_tokens.len()
        )));
    }
    let bytes: usize = parts.added_tokens.iter().map(|token| token.content.len()).sum();
    if bytes > MAX_ADDED_BYTES {
        return Err(Failure::data_loss(format!(
            "its added_tokens have {bytes} bytes of text, and {MAX_ADDED_BYTES} are the most that can be loaded"
        )));
    }
    for (name, part) in [("normalizer", &parts.normalizer), ("decoder", &parts.decoder)] {
        let times = growth(part);
        if times > MAX_GROWTH {
            return Err(Failure::data_loss(format!(
                "its {name} can make a text {times:.0} times as long, and the limit is {MAX_GROWTH}"
            )));
        }
    }
    Ok(())
}

/// By what factor at most a part makes a text longer, as far as the file itself says what is put in.
fn growth(part: &Json) -> f64 {
    let size = |field: &str| part.get(field).and_then(Json::as_str).map_or(0, str::len) as f64;
    match part.get("type").and_then(Json::as_str) {
        Some("Sequence") => {
            let steps = part.get("normalizers").or_else(|| part.get("decoders")).and_then(Json::as_array);
            steps.map_or(1.0, |steps| steps.iter().map(growth).product())
        }
        Some("Prepend") => 1.0 + size("prepend"),
        Some("Replace") => match part.pointer("/pattern/String").and_then(Json::as_str).map(str::len) {
            Some(length) if length > 0 => (size("content") / length as f64).max(1.0),
            _ => 1.0 + size("content"), // a regular expression matches between any two characters, too
        },
        Some("Precompiled") => part.get("precompiled_charsmap").and_then(Json::as_str).map_or(1.0, longest_mapping),
        _ => 1.0,
    }
}

/// The longest text of a SentencePiece charsmap: a size, a trie of that size, and texts with a NUL after each.
fn longest_mapping(charsmap: &str) -> f64 {
    let Ok(bytes) = base64::decode(charsmap) else { return 1.0 }; // the library refuses it
    let Some(size) = bytes.first_chunk::<4>().map(|size| u32::from_le_bytes(*size) as usize) else { return 1.0 };
    let texts = bytes.get(size.saturating_add(4)..).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(1).max(1) as f64
}

/// Makes searches of all regular expressions in this process end. A search over the limit panics in the library.
pub fn limit_searches() {
    static ONCE: Once = Once::new();
    // SAFETY: sets a number, which nothing reads at the same time but searches.
    ONCE.call_once(|| unsafe {
        onig_sys::onig_set_retry_limit_in_search(MAX_RETRIES);
    });
}
