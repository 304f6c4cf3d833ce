//! Tokenizers, chat templates, grammars and pictures behind the C ABI of `include/textkit.h`, which states the contracts. This file holds the
//! entry points and nothing else: each checks its pointers, calls safe code inside [`abi::guard`] and stores the result.

// The only way to end work at an allocation. CMakeLists.txt permits it for this crate.
#![feature(alloc_error_hook)]

mod abi;
mod bounds;
mod chat;
mod compiler;
mod environment;
mod gbnf;
mod grammar;
mod json;
mod matcher;
mod meter;
mod pictures;
mod pieces;
mod python;
mod render_threads;
mod rendering;
mod resample;
mod schema;
mod special_tokens;
mod steps;
mod stop;
mod template;
mod tokenizer;
mod tokenizer_limits;
mod turns;
mod vocabulary;

use std::sync::Arc;
use std::time::Duration;

use abi::{guard, make, Bytes, Cancel, Failure, Ids, Status, View};
use chat::{ChatTemplate, Files, Input};
use grammar::{Grammars, Kind, Limits, Source};
use matcher::Matcher;
use pictures::Size;
use resample::Rules;
use stop::Stop;
use tokenizer::{EncodeOptions, Tokenizer};

#[repr(C)]
pub struct TemplateFiles {
    tokenizer_config: View,
    special_tokens_map: View,
    jinja: View,
    tool_use_jinja: View,
}

#[repr(C)]
pub struct TemplateInput {
    messages: View,
    tools: View,
    kwargs: View,
    add_generation_prompt: bool,
    continue_final_message: bool,
    now: i64,
    cancel: Cancel,
}

impl From<&GrammarLimits> for Limits {
    fn from(given: &GrammarLimits) -> Limits {
        Limits {
            memory: isize::try_from(given.memory).unwrap_or(isize::MAX),
            time: Duration::from_millis(given.compile_ms.into()),
            at_once: given.at_once,
            cancel: given.cancel,
        }
    }
}

/// Functions that free a handle, or do nothing with NULL.
macro_rules! free {
    ($($name:ident($handle:ty);)*) => {$(
        /// # Safety
        /// `handle` comes from this library and was not freed before, or is NULL.
        #[no_mangle]
        pub unsafe extern "C" fn $name(handle: *mut $handle) {
            guard(std::ptr::null_mut(), || {
                if !handle.is_null() {
                    drop(unsafe { Box::from_raw(handle) });
                }
                Ok(())
            });
        }
    )*};
}

free! {
    textkit_tokenizer_free(Tokenizer);
    textkit_template_free(ChatTemplate);
    textkit_grammars_free(Grammars);
    textkit_matcher_free(Matcher);
    textkit_stop_free(Arc<Stop>);
}

/// # Safety
/// `bytes` is an output of this library that was not freed before.
#[no_mangle]
pub unsafe extern "C" fn textkit_bytes_free(bytes: Bytes) {
    unsafe { bytes.free() }
}

/// # Safety
/// `ids` is an output of this library that was not freed before.
#[no_mangle]
pub unsafe extern "C" fn textkit_ids_free(ids: Ids) {
    unsafe { ids.free() }
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_new(
    json: View,
    config: View,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> Status {
    make(out, error, || {
        let config = unsafe { config.optional("tokenizer_config.json") }?;
        Tokenizer::from_json(unsafe { json.bytes() }, config)
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: View,
    options: *const EncodeOptions,
    out: *mut Ids,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let text = unsafe { text.text("the text") }?;
        let ids = unsafe { &*tokenizer }.encode(text, unsafe { &*options })?;
        unsafe { *out = Ids::from(ids) };
        Ok(())
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const i32,
    size: usize,
    skip_special_tokens: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let ids = unsafe { abi::slice(ids, size) };
        let text = unsafe { &*tokenizer }.decode(ids, skip_special_tokens)?;
        unsafe { *out = Bytes::from(text) };
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is a live handle.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> i32 {
    unsafe { &*tokenizer }.vocab_size()
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_token_id(tokenizer: *const Tokenizer, token: View) -> i32 {
    let mut id = -1;
    guard(std::ptr::null_mut(), || {
        let token = unsafe { token.text("the token") }?;
        id = unsafe { &*tokenizer }.token_id(token);
        Ok(())
    });
    id
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_template_new(
    files: *const TemplateFiles,
    out: *mut *mut ChatTemplate,
    error: *mut Bytes,
) -> Status {
    make(out, error, || {
        let files = unsafe { &*files };
        ChatTemplate::new(Files {
            tokenizer_config: unsafe { files.tokenizer_config.optional("tokenizer_config.json") }?,
            special_tokens_map: unsafe { files.special_tokens_map.optional("special_tokens_map.json") }?,
            jinja: unsafe { files.jinja.optional("chat_template.jinja") }?,
            tool_use_jinja: unsafe { files.tool_use_jinja.optional("additional_chat_templates/tool_use.jinja") }?,
        })
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_template_render(
    template: *const ChatTemplate,
    input: *const TemplateInput,
    out: *mut Bytes,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let input = unsafe { &*input };
        let text = unsafe { &*template }.render(&Input {
            messages: unsafe { input.messages.text("messages") }?,
            tools: unsafe { input.tools.text("tools") }?,
            kwargs: unsafe { input.kwargs.text("chat template arguments") }?,
            add_generation_prompt: input.add_generation_prompt,
            continue_final_message: input.continue_final_message,
            now: input.now,
            cancel: input.cancel,
        })?;
        unsafe { *out = Bytes::from(text) };
        Ok(())
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_new(
    tokenizer: *const Tokenizer,
    out: *mut *mut Grammars,
    error: *mut Bytes,
) -> Status {
    make(out, error, || Grammars::new(unsafe { &(*tokenizer).inner }))
}

#[repr(C)]
pub struct GrammarLimits {
    memory: u64,
    compile_ms: u32,
    at_once: bool,
    cancel: Cancel,
}

#[repr(C)]
pub struct GrammarUsage {
    bytes: u64,
    grammars: u64,
    compiling: u64,
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_usage(grammars: *const Grammars) -> GrammarUsage {
    let (bytes, grammars, compiling) = unsafe { &*grammars }.usage();
    GrammarUsage { bytes, grammars, compiling }
}

#[repr(C)]
pub struct GivenGrammar {
    kind: i32,
    text: View,
    choices: *const View,
    choices_size: usize,
    lead: View,
}

/// # Safety
/// The memory that `given` points to outlives what is returned.
unsafe fn source<'a>(given: *const GivenGrammar) -> Result<Source<'a>, Failure> {
    const KINDS: [Kind; 6] = [Kind::JsonObject, Kind::JsonSchema, Kind::Regex, Kind::Choice, Kind::Lark, Kind::Ebnf];
    let given = unsafe { &*given };
    let kind = usize::try_from(given.kind).ok().and_then(|kind| KINDS.get(kind));
    let kind = *kind.ok_or_else(|| Failure::invalid("there is no such kind of grammar"))?;
    let text = unsafe { given.text.text("the grammar") }?;
    let choices = unsafe { abi::slice(given.choices, given.choices_size) };
    let choices = choices.iter().map(|choice| unsafe { choice.text("a choice") });
    let choices = choices.collect::<Result<Vec<_>, _>>()?;
    let lead = unsafe { given.lead.text("what precedes the text") }?;
    Ok(Source { kind, text, choices, lead })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_is_quick(grammars: *const Grammars, grammar: *const GivenGrammar) -> bool {
    let mut quick = false;
    guard(std::ptr::null_mut(), || {
        let source = unsafe { source(grammar) }?;
        quick = unsafe { &*grammars }.is_quick(&source);
        Ok(())
    });
    quick
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_compile(
    grammars: *const Grammars,
    grammar: *const GivenGrammar,
    limits: *const GrammarLimits,
    out: *mut *mut Matcher,
    error: *mut Bytes,
) -> Status {
    make(out, error, || {
        let source = unsafe { source(grammar) }?;
        unsafe { &*grammars }.compile(&source, unsafe { &*limits }.into())
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_check(
    grammars: *const Grammars,
    grammar: *const GivenGrammar,
    limits: *const GrammarLimits,
    notes: *mut Bytes,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let source = unsafe { source(grammar) }?;
        let said = unsafe { &*grammars }.check(&source, unsafe { &*limits }.into())?;
        unsafe { *notes = said.into() };
        Ok(())
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_matcher_stop(matcher: *const Matcher) -> *mut Arc<Stop> {
    Box::into_raw(Box::new(unsafe { &*matcher }.stop()))
}

/// # Safety
/// `stop` comes from textkit_matcher_stop.
#[no_mangle]
pub unsafe extern "C" fn textkit_stop_now(stop: *const Arc<Stop>) {
    unsafe { &*stop }.now();
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_matcher_masks(
    matcher: *mut Matcher,
    drafted: *const i32,
    size: usize,
    words: *mut u32,
    mask_words: usize,
    ends: *mut u8,
    rows: *mut usize,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let drafted = unsafe { abi::slice(drafted, size) };
        let words = unsafe { abi::slice_mut(words, (size + 1) * mask_words) };
        let ends = unsafe { abi::slice_mut(ends, size + 1) };
        let (filled, outcome) = unsafe { &mut *matcher }.masks(drafted, words, mask_words, ends);
        unsafe { *rows = filled };
        outcome
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_matcher_commit(
    matcher: *mut Matcher,
    tokens: *const i32,
    size: usize,
    error: *mut Bytes,
) -> Status {
    guard(error, || unsafe { &mut *matcher }.commit(unsafe { abi::slice(tokens, size) }))
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_picture_measure(
    file: View,
    rules: *const Rules,
    size: *mut Size,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let measured = pictures::measure(unsafe { file.bytes() }, unsafe { &*rules })?;
        unsafe { *size = measured };
        Ok(())
    })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_picture_read(
    file: View,
    rules: *const Rules,
    cancel: Cancel,
    size: *mut Size,
    rgb: *mut Bytes,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let (read, pixels) = pictures::read(unsafe { file.bytes() }, unsafe { &*rules }, cancel)?;
        unsafe {
            *size = read;
            *rgb = pixels.into();
        }
        Ok(())
    })
}
