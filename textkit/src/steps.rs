//! The steps that a tokenizer takes with a text and with ids. The library's own loops over steps, words and the matches
//! of a regular expression run until they are done; these end where [`meter::look`] says so.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::{NormalizerWrapper, Replace};
use tokenizers::pre_tokenizers::split::Split;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::pattern::{Invert, Pattern};
use tokenizers::utils::SysRegex;
use tokenizers::{
    Decoder, Encoding, Model, NormalizedString, Normalizer, OffsetType, Offsets, PreTokenizedString, PreTokenizer,
    Result, Tokenizer,
};

use crate::meter;

/// Sequences of the file, also those inside of others, as one list each.
pub struct Steps {
    normalizers: Normalizers,
    pre_tokenizers: Vec<PreTokenizerWrapper>,
    decoders: Option<Vec<DecoderStep>>,
}

struct Normalizers(Vec<NormalizerStep>);

enum NormalizerStep {
    Replace(Replacement),
    Other(NormalizerWrapper),
}

enum DecoderStep {
    Replace(Replacement),
    Other(DecoderWrapper),
}

struct Replacement {
    regex: SysRegex,
    content: String,
}

/// The matches of a regular expression, one at a time: a match may take millions of steps.
struct Watched<'a>(&'a SysRegex);

impl Pattern for Watched<'_> {
    fn find_matches(&self, text: &str) -> Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut parts = Vec::new();
        let mut rest = 0;
        for (start, end) in self.0.find_iter(text) {
            meter::look();
            if rest < start {
                parts.push(((rest, start), false));
            }
            parts.push(((start, end), true));
            rest = end;
        }
        if rest < text.len() {
            parts.push(((rest, text.len()), false));
        }
        Ok(parts)
    }
}

impl Replacement {
    /// The library shows a pattern only to its serializer.
    fn new(replace: &Replace) -> Result<Replacement> {
        let pattern = &serde_json::to_value(replace)?["pattern"];
        let regex = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
            (Some(text), _) => SysRegex::new(&regex_syntax::escape(text))?,
            (None, regex) => SysRegex::new(regex.unwrap_or_default())?,
        };
        Ok(Replacement { regex, content: replace.content.clone() })
    }

    fn apply(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        for ((start, end), is_match) in Watched(&self.regex).find_matches(text)? {
            out.push_str(if is_match { &self.content } else { &text[start..end] });
        }
        Ok(out)
    }
}

impl Normalizer for Normalizers {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        self.0.iter().try_for_each(|step| {
            meter::look();
            match step {
                NormalizerStep::Replace(with) => text.replace(Watched(&with.regex), &with.content),
                NormalizerStep::Other(step) => step.normalize(text),
            }
        })
    }
}

fn add_normalizer(step: &NormalizerWrapper, list: &mut Vec<NormalizerStep>) -> Result<()> {
    match step {
        NormalizerWrapper::Sequence(steps) => {
            return steps.as_ref().iter().try_for_each(|step| add_normalizer(step, list));
        }
        NormalizerWrapper::Replace(replace) => list.push(NormalizerStep::Replace(Replacement::new(replace)?)),
        other => list.push(NormalizerStep::Other(other.clone())),
    }
    Ok(())
}

fn add_pre_tokenizer(step: &PreTokenizerWrapper, list: &mut Vec<PreTokenizerWrapper>) {
    match step {
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().for_each(|step| add_pre_tokenizer(step, list)),
        other => list.push(other.clone()),
    }
}

fn add_decoder(step: &DecoderWrapper, list: &mut Vec<DecoderStep>) -> Result<()> {
    match step {
        DecoderWrapper::Sequence(steps) => {
            return steps.get_decoders().iter().try_for_each(|step| add_decoder(step, list));
        }
        DecoderWrapper::Replace(replace) => list.push(DecoderStep::Replace(Replacement::new(replace)?)),
        other => list.push(DecoderStep::Other(other.clone())),
    }
    Ok(())
}

fn split(split: &Split, parts: &mut PreTokenizedString) -> Result<()> {
    parts.split(|_, part| {
        meter::look();
        match split.invert {
            true => part.split(Invert(Watched(&split.regex)), split.behavior),
            false => part.split(Watched(&split.regex), split.behavior),
        }
    })
}

impl Steps {
    pub fn new(tokenizer: &Tokenizer) -> Result<Steps> {
        let (mut normalizers, mut pre_tokenizers) = (Vec::new(), Vec::new());
        tokenizer.get_normalizer().map_or(Ok(()), |step| add_normalizer(step, &mut normalizers))?;
        tokenizer.get_pre_tokenizer().into_iter().for_each(|step| add_pre_tokenizer(step, &mut pre_tokenizers));
        let mut decoders = tokenizer.get_decoder().map(|_| Vec::new());
        if let (Some(step), Some(list)) = (tokenizer.get_decoder(), &mut decoders) {
            add_decoder(step, list)?;
        }
        Ok(Steps { normalizers: Normalizers(normalizers), pre_tokenizers, decoders })
    }

    /// The ids of a text. With `special` the post-processor adds its own. plain: added tokens are not looked for, and
    /// there is no post-processor.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, special: bool, plain: bool) -> Result<Encoding> {
        let mut parts = match plain {
            true => PreTokenizedString::from(text),
            false => tokenizer.get_added_vocabulary().extract_and_normalize(Some(&self.normalizers), text),
        };
        if plain {
            parts.normalize(|part| self.normalizers.normalize(part))?;
        }
        for step in &self.pre_tokenizers {
            match step {
                PreTokenizerWrapper::Split(step) => split(step, &mut parts)?,
                other => other.pre_tokenize(&mut parts)?,
            }
        }
        parts.tokenize(|part| {
            meter::look();
            tokenizer.get_model().tokenize(part.get())
        })?;
        // Without character offsets, which are never read here.
        let encoding = parts.into_encoding(None, 0, OffsetType::None)?;
        match plain {
            true => Ok(encoding),
            false => tokenizer.post_process(encoding, None, special),
        }
    }

    pub fn decode(&self, tokenizer: &Tokenizer, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let added = tokenizer.get_added_vocabulary();
        let text_of = |&id: &u32| added.simple_id_to_token(id).or_else(|| tokenizer.get_model().id_to_token(id));
        let shown = |token: &String| !skip_special_tokens || !added.is_special_token(token);
        let mut tokens: Vec<String> = ids.iter().filter_map(text_of).filter(shown).collect();
        let Some(steps) = &self.decoders else { return Ok(tokens.join(" ")) };
        for step in steps {
            meter::look();
            tokens = match step {
                DecoderStep::Replace(with) => tokens.iter().map(|token| with.apply(token)).collect::<Result<_>>()?,
                DecoderStep::Other(step) => step.decode_chain(tokens)?,
            };
        }
        Ok(tokens.concat())
    }
}
