/* textkit: Hugging Face tokenizers and chat templates for C and C++. The library is written in Rust and linked
 * statically.
 *
 * Status: every function that can fail returns a textkit_status. On TEXTKIT_OK the outputs are set and *error is left
 *   alone; otherwise *error holds a message for people and no other output is set. A panic inside the library arrives
 *   as TEXTKIT_INTERNAL: nothing unwinds into the caller.
 * Strings: UTF-8 with an explicit length, without a terminating NUL; a NUL byte is an ordinary character. An input that
 *   must be UTF-8 and is not gives TEXTKIT_INVALID_ARGUMENT with the offset of the first bad byte.
 * Ownership: inputs are borrowed for the call. An output textkit_bytes or textkit_ids (errors too) belongs to the
 *   caller, who gives it back to textkit_bytes_free or textkit_ids_free. Handles are released by their own _free. All
 *   _free functions accept what an empty or never set output holds (NULL).
 * Threads: handles are immutable. Any number of threads may use one at once; _free needs all of them to be done.
 * Input and output: none. The library opens no file, prints nothing and reads no clock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum textkit_status {
  TEXTKIT_OK = 0,
  TEXTKIT_INVALID_ARGUMENT = 1,    /* the input of this call is wrong */
  TEXTKIT_FAILED_PRECONDITION = 2, /* the model's files do not offer what was asked for */
  TEXTKIT_DATA_LOSS = 3,           /* a file's contents cannot be read */
  TEXTKIT_INTERNAL = 4,            /* a bug here or in a library below */
} textkit_status;

/* Borrowed bytes. data may be NULL when size is 0; where a parameter is optional, NULL means "not given". */
typedef struct textkit_view {
  const char* data;
  size_t size;
} textkit_view;

/* Bytes owned by the caller. data is NULL when size is 0. */
typedef struct textkit_bytes {
  char* data;
  size_t size;
} textkit_bytes;

/* Token ids owned by the caller. data is NULL when size is 0. */
typedef struct textkit_ids {
  int32_t* data;
  size_t size;
} textkit_ids;

void textkit_bytes_free(textkit_bytes bytes);
void textkit_ids_free(textkit_ids ids);

/* ---- Tokenizers ---- */

typedef struct textkit_tokenizer textkit_tokenizer;

/* json: the contents of tokenizer.json (TEXTKIT_DATA_LOSS if it is not one). Truncation and padding that the file may
 * ask for are switched off: they are the caller's business. */
textkit_status textkit_tokenizer_new(textkit_view json, textkit_tokenizer** tokenizer, textkit_bytes* error);
void textkit_tokenizer_free(textkit_tokenizer* tokenizer);

/* Special tokens written out in `text` become their ids. With add_special_tokens the file's post-processor adds its
 * own around them. */
textkit_status textkit_tokenizer_encode(const textkit_tokenizer* tokenizer, textkit_view text, bool add_special_tokens,
                                        textkit_ids* ids, textkit_bytes* error);

/* Ids outside the vocabulary are left out. The result is valid UTF-8. */
textkit_status textkit_tokenizer_decode(const textkit_tokenizer* tokenizer, const int32_t* ids, size_t size,
                                        bool skip_special_tokens, textkit_bytes* text, textkit_bytes* error);

/* Number of tokens, added ones included. */
int32_t textkit_tokenizer_vocab_size(const textkit_tokenizer* tokenizer);

/* The id of exactly this token as the vocabulary spells it, or -1. */
int32_t textkit_tokenizer_token_id(const textkit_tokenizer* tokenizer, textkit_view token);

/* ---- Chat templates ---- */

typedef struct textkit_template textkit_template;

/* What a model folder says about its template, each the contents of a file and each optional. */
typedef struct textkit_template_files {
  textkit_view tokenizer_config;   /* tokenizer_config.json: chat_template and special tokens */
  textkit_view special_tokens_map; /* special_tokens_map.json: special tokens that the config does not name */
  textkit_view jinja;              /* chat_template.jinja: wins over the config's chat_template */
} textkit_template_files;

/* Compiles the templates "default" and "tool_use". A folder without a template is no error: rendering is. */
textkit_status textkit_template_new(const textkit_template_files* files, textkit_template** chat_template,
                                    textkit_bytes* error);
void textkit_template_free(textkit_template* chat_template);

typedef struct textkit_template_input {
  textkit_view messages; /* JSON array of message objects */
  textkit_view tools;    /* JSON array, or empty: the template sees none */
  textkit_view kwargs;   /* JSON object of further variables, or empty */
  bool add_generation_prompt;
  bool continue_final_message; /* not together with add_generation_prompt */
  int64_t now;                 /* seconds since 1970, for templates that print the date (strftime_now, local time) */
} textkit_template_input;

/* An exception that the template raises is TEXTKIT_INVALID_ARGUMENT with its message. */
textkit_status textkit_template_render(const textkit_template* chat_template, const textkit_template_input* input,
                                       textkit_bytes* text, textkit_bytes* error);

#ifdef __cplusplus
}
#endif
