//! Tokenizers and chat templates behind the C ABI of `include/textkit.h`, which states the contracts. This file holds the
//! entry points and nothing else: each checks its pointers, calls safe code inside [`abi::guard`] and stores the result.

mod abi;
mod chat;
mod environment;
mod json;
mod tokenizer;

use abi::{guard, Bytes, Ids, Status, View};
use chat::{ChatTemplate, Files, Input};
use tokenizer::Tokenizer;

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
pub unsafe extern "C" fn textkit_tokenizer_new(json: View, out: *mut *mut Tokenizer, error: *mut Bytes) -> Status {
    guard(error, || {
        let tokenizer = Tokenizer::from_json(unsafe { json.bytes() })?;
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
    add_special_tokens: bool,
    out: *mut Ids,
    error: *mut Bytes,
) -> Status {
    guard(error, || {
        let text = unsafe { text.text("the text") }?;
        let ids = unsafe { &*tokenizer }.encode(text, add_special_tokens)?;
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
        })?;
        unsafe { *out = Bytes::from(text) };
        Ok(())
    })
}
