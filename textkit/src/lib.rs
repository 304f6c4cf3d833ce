//! Tokenizers, chat templates and grammars behind the C ABI of `include/textkit.h`, which states the contracts. This file holds the
//! entry points and nothing else: each checks its pointers, calls safe code inside [`abi::guard`] and stores the result.

// The one way to make a lack of memory an error of one call. CMakeLists.txt there allows it for this crate.
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
mod pieces;
mod render_threads;
mod rendering;
mod special_tokens;
mod stop;
mod tokenizer;
mod tokenizer_limits;
mod vocabulary;

use std::sync::Arc;
use std::time::Duration;

use abi::{guard, Bytes, Cancel, Failure, Ids, Status, View};
use chat::{ChatTemplate, Files, Input};
use grammar::{Grammars, Kind, Limits};
use matcher::Matcher;
use stop::Stop;
use tokenizer::{EncodeOptions, Tokenizer};

#[repr(C)]
pub struct TemplateFiles {
    tokenizer_config: View,
    special_tokens_map: View,
    jinja: View,
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
    guard(error, || {
        let config = unsafe { config.optional("tokenizer_config.json") }?;
        let tokenizer = Tokenizer::from_json(unsafe { json.bytes() }, config)?;
        unsafe { *out = Box::into_raw(Box::new(tokenizer)) };
        Ok(())
    })
}

/// # Safety
/// `tokenizer` comes from textkit_tokenizer_new, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn textkit_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(unsafe { Box::from_raw(tokenizer) });
    }
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
    guard(error, || {
        let files = unsafe { &*files };
        let template = ChatTemplate::new(Files {
            tokenizer_config: unsafe { files.tokenizer_config.optional("tokenizer_config.json") }?,
            special_tokens_map: unsafe { files.special_tokens_map.optional("special_tokens_map.json") }?,
            jinja: unsafe { files.jinja.optional("chat_template.jinja") }?,
        })?;
        unsafe { *out = Box::into_raw(Box::new(template)) };
        Ok(())
    })
}

/// # Safety
/// `template` comes from textkit_template_new, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn textkit_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(unsafe { Box::from_raw(template) });
    }
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
    guard(error, || {
        let grammars = Grammars::new(unsafe { &(*tokenizer).inner })?;
        unsafe { *out = Box::into_raw(Box::new(grammars)) };
        Ok(())
    })
}

/// # Safety
/// `grammars` comes from textkit_grammars_new, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_free(grammars: *mut Grammars) {
    if !grammars.is_null() {
        drop(unsafe { Box::from_raw(grammars) });
    }
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

/// A grammar as its caller names it.
struct Named<'a> {
    kind: Kind,
    text: &'a str,
    choices: Vec<&'a str>,
    lead: &'a str,
}

/// # Safety
/// The memory of the views and of `choices` outlives what is returned.
unsafe fn named<'a>(
    kind: i32,
    text: View,
    choices: *const View,
    choices_size: usize,
    lead: View,
) -> Result<Named<'a>, Failure> {
    const KINDS: [Kind; 6] = [Kind::JsonObject, Kind::JsonSchema, Kind::Regex, Kind::Choice, Kind::Lark, Kind::Ebnf];
    let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind));
    let kind = *kind.ok_or_else(|| Failure::invalid("there is no such kind of grammar"))?;
    let text = unsafe { text.text("the grammar") }?;
    let choices = unsafe { abi::slice(choices, choices_size) };
    let choices = choices.iter().map(|choice| unsafe { choice.text("a choice") });
    let choices = choices.collect::<Result<Vec<_>, _>>()?;
    let lead = unsafe { lead.text("what precedes the text") }?;
    Ok(Named { kind, text, choices, lead })
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_is_quick(
    grammars: *const Grammars,
    kind: i32,
    text: View,
    choices: *const View,
    choices_size: usize,
    lead: View,
) -> bool {
    let mut quick = false;
    guard(std::ptr::null_mut(), || {
        let Named { kind, text, choices, lead } = unsafe { named(kind, text, choices, choices_size, lead) }?;
        quick = unsafe { &*grammars }.is_quick(kind, text, &choices, lead);
        Ok(())
    });
    quick
}

/// # Safety
/// Pointers as textkit.h says.
#[no_mangle]
pub unsafe extern "C" fn textkit_grammars_compile(
    grammars: *const Grammars,
    kind: i32,
    text: View,
    choices: *const View,
    choices_size: usize,
    lead: View,
    limits: *const GrammarLimits,
    out: *mut *mut Matcher,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let Named { kind, text, choices, lead } = unsafe { named(kind, text, choices, choices_size, lead) }?;
        let limits = unsafe { &*limits };
        let limits = Limits {
            memory: isize::try_from(limits.memory).unwrap_or(isize::MAX),
            time: Duration::from_millis(limits.compile_ms.into()),
            at_once: limits.at_once,
            cancel: limits.cancel,
        };
        let matcher = unsafe { &*grammars }.compile(kind, text, &choices, lead, limits)?;
        unsafe { *out = Box::into_raw(Box::new(matcher)) };
        Ok(())
    })
}

/// # Safety
/// `matcher` comes from textkit_grammars_compile, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn textkit_matcher_free(matcher: *mut Matcher) {
    guard(std::ptr::null_mut(), || {
        if !matcher.is_null() {
            drop(unsafe { Box::from_raw(matcher) });
        }
        Ok(())
    });
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
/// `stop` comes from textkit_matcher_stop, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn textkit_stop_free(stop: *mut Arc<Stop>) {
    if !stop.is_null() {
        drop(unsafe { Box::from_raw(stop) });
    }
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
