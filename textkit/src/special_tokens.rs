//! The special tokens that transformers 4 puts around a text by tokenizer_config.json. Version 5
//! reads only tokenizer.json, but models published for version 4 have no such tokens there.

use serde_json::{json, Map, Value as Json};
use tokenizers::{PostProcessorWrapper, Tokenizer};

use crate::abi::Failure;

type Config = Map<String, Json>;

fn wrong(what: &str) -> Failure {
    Failure::data_loss(format!("tokenizer_config.json beside it {what}"))
}

/// Null counts as false.
fn flag(config: &Config, name: &str, default: bool) -> Result<bool, Failure> {
    match config.get(name) {
        None => Ok(default),
        Some(Json::Null) => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong(&format!("has an \"{name}\" that is neither true nor false"))),
    }
}

struct Token {
    text: String,
    id: u32,
}

/// The token called `name`, `default` where the file does not say; None where there is no such token. `asked`: the file
/// itself asks for it to be added.
fn token(
    tokenizer: &Tokenizer,
    config: &Config,
    name: &str,
    default: &str,
    asked: bool,
) -> Result<Option<Token>, Failure> {
    let text = match config.get(name) {
        None => default,
        Some(Json::String(text)) => text,
        Some(Json::Object(token)) => token.get("content").and_then(Json::as_str).unwrap_or_default(),
        Some(_) => return Ok(None),
    };
    match tokenizer.token_to_id(text) {
        Some(id) => Ok(Some(Token { text: text.to_string(), id })),
        None if asked && config.contains_key(name) => {
            Err(wrong(&format!("adds its {name} \"{text}\" to texts, and the vocabulary has no such token")))
        }
        None => Ok(None),
    }
}

fn adds_tokens(tokenizer: &Tokenizer) -> bool {
    let count = |special| tokenizer.encode_fast("a", special).map_or(0, |encoding| encoding.get_ids().len());
    count(true) > count(false)
}

/// LlamaTokenizer and LlamaTokenizerFast, under which models of many families are published, make the post-processor
/// anew: with the token that begins a text unless add_bos_token is false, and the one that ends it if add_eos_token is
/// true. Where a file sets neither, a post-processor that adds tokens stays.
pub fn install(tokenizer: &mut Tokenizer, config: Option<&str>) -> Result<(), Failure> {
    let Some(config) = config else { return Ok(()) };
    let config: Config = serde_json::from_str(config).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let class = config.get("tokenizer_class").and_then(Json::as_str);
    if !matches!(class, Some("LlamaTokenizer" | "LlamaTokenizerFast")) {
        return Ok(());
    }
    let (bos_asked, eos_asked) = (config.contains_key("add_bos_token"), config.contains_key("add_eos_token"));
    if !bos_asked && !eos_asked && adds_tokens(tokenizer) {
        return Ok(());
    }
    let begins = match flag(&config, "add_bos_token", true)? {
        true => token(tokenizer, &config, "bos_token", "<s>", bos_asked)?,
        false => None,
    };
    let ends = match flag(&config, "add_eos_token", false)? {
        true => token(tokenizer, &config, "eos_token", "</s>", eos_asked)?,
        false => None,
    };
    let processor = template(begins, ends)
        .map_err(|error| Failure::internal(format!("the post-processor by tokenizer_config.json: {error}")))?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}

fn template(begins: Option<Token>, ends: Option<Token>) -> serde_json::Result<PostProcessorWrapper> {
    let special = |token: &Option<Token>, type_id: u32| {
        token.as_ref().map(|token| json!({"SpecialToken": {"id": token.text, "type_id": type_id}}))
    };
    let around = |sequence: &str, type_id: u32| {
        let text = json!({"Sequence": {"id": sequence, "type_id": type_id}});
        [special(&begins, type_id), Some(text), special(&ends, type_id)].into_iter().flatten().collect::<Vec<_>>()
    };
    let single = around("A", 0);
    let pair = [single.clone(), around("B", 1)].concat();
    let tokens: Map<String, Json> = [&begins, &ends]
        .into_iter()
        .flatten()
        .map(|token| (token.text.clone(), json!({"id": token.text, "ids": [token.id], "tokens": [token.text]})))
        .collect();
    serde_json::from_value(json!({
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens
    }))
}
