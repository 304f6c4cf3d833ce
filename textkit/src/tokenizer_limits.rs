//! Limits on a tokenizer.json. The file comes with the weights, and some of its possible contents
//! make loading, or the first text, take hours or all memory.

use std::fmt::{self, Display};
use std::sync::Once;
use std::time::Duration;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use tokenizers::Tokenizer;

use crate::abi::{caught, Cancel, Failure};
use crate::meter::{self, Budget, Stopped};
use crate::steps::Steps;

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

/// Steps of a normalizer, a pre-tokenizer, a decoder or a post-processor; published ones have up to some 30.
const MAX_STEPS: usize = 256;
/// Letters of a word that WordPiece looks into; published ones have 100, and the time grows with their cube.
const MAX_WORD_LETTERS: u64 = 1_000;
/// Bytes of a token. Unigram's tree of its tokens is as deep, and is freed by recursion.
const MAX_TOKEN: usize = 4 << 10;
/// Bytes of all tokens of Unigram, each of which may be a node of that tree of 100 bytes and more.
const MAX_UNIGRAM: usize = 32 << 20;

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
    model: Model,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
}

#[derive(Deserialize, Default)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Json,
    #[serde(default)]
    max_input_chars_per_word: Json,
    #[serde(default)]
    vocab: Sizes,
}

/// Sizes of the tokens of a vocabulary: an object from tokens to ids, or a list of pairs of a token and its score.
#[derive(Default)]
struct Sizes {
    longest: usize,
    all: usize,
}

impl Sizes {
    fn add(&mut self, token: &str) {
        self.longest = self.longest.max(token.len());
        self.all += token.len();
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Sizes, D::Error> {
        struct Reader(Sizes);
        impl<'de> Visitor<'de> for Reader {
            type Value = Sizes;
            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a vocabulary")
            }
            fn visit_unit<E>(self) -> Result<Sizes, E> {
                Ok(self.0)
            }
            fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<Sizes, M::Error> {
                while let Some((token, _)) = map.next_entry::<String, IgnoredAny>()? {
                    self.0.add(&token);
                }
                Ok(self.0)
            }
            fn visit_seq<S: SeqAccess<'de>>(mut self, mut list: S) -> Result<Sizes, S::Error> {
                while let Some((token, _)) = list.next_element::<(String, IgnoredAny)>()? {
                    self.0.add(&token);
                }
                Ok(self.0)
            }
        }
        from.deserialize_any(Reader(Sizes::default()))
    }
}

/// Looks at the file before the library builds anything from it. Returns whether it says that its model is BPE.
pub fn check(json: &[u8]) -> Result<bool, Failure> {
    let parts: Parts = serde_json::from_slice(json).map_err(|error| Failure::data_loss(error.to_string()))?;
    let most = |what: String, most: &dyn Display, can: &str| {
        Err(Failure::data_loss(format!("{what}, and {most} are the most that can be {can}")))
    };
    let added = parts.added_tokens.len();
    if added > MAX_ADDED_TOKENS {
        return most(
            format!("it has {added} added_tokens"),
            &MAX_ADDED_TOKENS,
            "loaded: put them into the model's vocabulary",
        );
    }
    let bytes: usize = parts.added_tokens.iter().map(|token| token.content.len()).sum();
    if bytes > MAX_ADDED_BYTES {
        return most(format!("its added_tokens have {bytes} bytes of text"), &MAX_ADDED_BYTES, "loaded");
    }
    let Sizes { longest, all } = parts.model.vocab;
    if longest > MAX_TOKEN {
        return most(format!("a token of its vocabulary has {longest} bytes"), &MAX_TOKEN, "loaded");
    }
    if parts.model.kind == "Unigram" && all > MAX_UNIGRAM {
        return most(format!("its vocabulary has {all} bytes of text"), &MAX_UNIGRAM, "loaded");
    }
    if let Some(letters) = parts.model.max_input_chars_per_word.as_u64().filter(|&n| n > MAX_WORD_LETTERS) {
        return most(format!("its max_input_chars_per_word is {letters}"), &MAX_WORD_LETTERS, "looked at in time");
    }
    for (name, part) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("post_processor", &parts.post_processor),
        ("decoder", &parts.decoder),
    ] {
        let count = steps(part);
        if count > MAX_STEPS {
            return most(format!("its {name} has {count} steps"), &MAX_STEPS, "taken");
        }
        if has_cut_charsmap(part) {
            return Err(Failure::data_loss(format!("the precompiled_charsmap of its {name} ends before its trie")));
        }
        let times = growth(part, name != "decoder");
        if times > MAX_GROWTH {
            return Err(Failure::data_loss(format!(
                "its {name} can make a text {times:.0} times as long, and the limit is {MAX_GROWTH}"
            )));
        }
    }
    Ok(parts.model.kind == "BPE")
}

/// The steps inside a Sequence, under any of its names.
fn inside(part: &Json) -> impl Iterator<Item = &Json> {
    const LISTS: [&str; 4] = ["normalizers", "pretokenizers", "processors", "decoders"];
    LISTS.iter().filter_map(|list| part.get(list)?.as_array()).flatten()
}

fn steps(part: &Json) -> usize {
    inside(part).map(steps).sum::<usize>().max(1)
}

/// By what factor at most a part makes a text longer, as far as the file itself says what is put in. encodes: it is no
/// decoder.
fn growth(part: &Json, encodes: bool) -> f64 {
    let text = |field: &str| part.get(field).and_then(Json::as_str);
    let size = |field: &str| text(field).map_or(0, str::len) as f64;
    let between_letters = |field: &str| if text(field) == Some("") { 2.0 } else { 1.0 };
    match text("type") {
        Some("Sequence") => inside(part).map(|part| growth(part, encodes)).product(),
        Some("Prepend") => 1.0 + size("prepend"),
        Some("Replace") => match part.pointer("/pattern/String").and_then(Json::as_str).map(str::len) {
            Some(length) if length > 0 => (size("content") / length as f64).max(1.0),
            _ => 1.0 + size("content"), // a regular expression matches between any two characters, too
        },
        Some("Precompiled") => part.get("precompiled_charsmap").and_then(Json::as_str).map_or(1.0, longest_mapping),
        Some("ByteLevel") if encodes => 2.0, // a byte of a text that is not ASCII becomes a letter of two
        Some("BPEDecoder") => between_letters("suffix"),
        Some("CTC") => between_letters("word_delimiter_token"),
        Some("TemplateProcessing") => {
            let pieces = part.get("single").and_then(Json::as_array).into_iter().flatten();
            pieces.filter(|piece| piece.get("Sequence").is_some()).count().max(1) as f64
        }
        _ => 1.0,
    }
}

/// The longest text of a SentencePiece charsmap: its texts, each ended by a NUL, follow a size and
/// a trie of that size.
fn longest_mapping(charsmap: &str) -> f64 {
    let Ok(bytes) = base64::decode(charsmap) else { return 1.0 }; // the library refuses it
    let texts = trie_end(&bytes).and_then(|end| bytes.get(end..)).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(1).max(1) as f64
}

fn trie_end(charsmap: &[u8]) -> Option<usize> {
    (u32::from_le_bytes(*charsmap.first_chunk::<4>()?) as usize).checked_add(4)
}

/// Whether a charsmap in the part ends before its trie. The library makes room for as much as the size says.
fn has_cut_charsmap(part: &Json) -> bool {
    let charsmap = part.get("precompiled_charsmap").and_then(Json::as_str);
    charsmap.and_then(|text| base64::decode(text).ok()).is_some_and(|map| trie_end(&map) > Some(map.len()))
        || inside(part).any(has_cut_charsmap)
}

/// Letters of many kinds, a long word and long runs.
fn probe_text() -> String {
    let kinds = "The quick, 12345 (brown) fox's\r\n\t<s>é e\u{301} ﷺ ل 日本語、 привет 한국 עב 👩‍👩‍👧 \u{3000}ạ̈ ";
    [kinds.repeat(4), "a".repeat(500), "é".repeat(250), " ".repeat(250), "1".repeat(250)].concat()
}
const PROBE_IDS: u32 = 512;
const PROBE_BUDGET: Budget =
    Budget { bytes: 64 << 20, pieces: isize::MAX as usize, total_bytes: usize::MAX, cpu: Duration::from_secs(2) };

/// Refuses a tokenizer that takes very long for a short text and a few ids. Texts that it cannot take are no such thing.
pub fn probe(tokenizer: &Tokenizer, steps: &Steps) -> Result<(), Failure> {
    let text = probe_text();
    let ids: Vec<u32> = (0..PROBE_IDS).collect();
    let tried = |what: String, work: &dyn Fn() -> bool| {
        let tried = caught(|| meter::within(PROBE_BUDGET, Cancel::NEVER, work), Failure::internal);
        let most = match tried {
            Ok(Err(Stopped::Cpu)) => format!("{} s", PROBE_BUDGET.cpu.as_secs()),
            Ok(Err(Stopped::Bytes)) => format!("{} MiB of memory", PROBE_BUDGET.bytes >> 20),
            _ => return Ok(()),
        };
        Err(Failure::data_loss(format!("it takes more than {most} for {what}")))
    };
    tried(format!("a text of {} bytes", text.len()), &|| steps.encode(tokenizer, &text, true, false).is_ok())?;
    tried(format!("the text of {PROBE_IDS} tokens"), &|| steps.decode(tokenizer, &ids, false).is_ok())
}

/// Makes searches of all regular expressions in this process end. A search over the limit panics in the library.
pub fn limit_searches() {
    static ONCE: Once = Once::new();
    // SAFETY: sets a number, which nothing reads at the same time but searches.
    ONCE.call_once(|| unsafe {
        onig_sys::onig_set_retry_limit_in_search(MAX_RETRIES);
    });
}
