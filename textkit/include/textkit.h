/* textkit: Hugging Face tokenizers, chat templates, grammars and pictures for C and C++. The library is written in Rust
 * and linked statically.
 *
 * Status: every function that can fail returns a textkit_status. On TEXTKIT_OK the outputs are set and *error is left
 *   alone; otherwise *error holds a message for people and no other output is set. A panic inside the library arrives
 *   as TEXTKIT_INTERNAL: nothing unwinds into the caller.
 * Strings: UTF-8 with an explicit length, without a terminating NUL; a NUL byte is an ordinary character. An input that
 *   must be UTF-8 and is not gives TEXTKIT_INVALID_ARGUMENT with the offset of the first bad byte.
 * Ownership: inputs are borrowed for the call. An output textkit_bytes or textkit_ids (errors too) belongs to the
 *   caller, who gives it back to textkit_bytes_free or textkit_ids_free. Handles are released by their own _free. All
 *   _free functions accept what an empty or never set output holds (NULL).
 * Threads: handles are immutable but for matchers. Any number of threads may use one at once (a matcher: one); _free
 *   needs all of them to be done.
 * Input and output: none. The library opens no file, prints nothing and reads no clock, but for the time
 *   limit of textkit_grammars_compile. It keeps some threads of its own, which wait when no call runs. */
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
  TEXTKIT_EXHAUSTED = 5,           /* no room now: the same call may work later */
  TEXTKIT_CANCELLED = 6,           /* the caller asked for it, see textkit_cancel */
  TEXTKIT_UNAVAILABLE = 7,         /* the system has no thread for this call; others are as before */
} textkit_status;

/* Asks a call that takes long to give up. asked is called now and then with context, on the calling thread or on
 * another that it waits for; true ends the call with TEXTKIT_CANCELLED. asked may be NULL: never. */
typedef struct textkit_cancel {
  bool (*asked)(const void* context);
  const void* context;
} textkit_cancel;

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

/* json: the contents of tokenizer.json (TEXTKIT_DATA_LOSS if it is not one, or asks for what would take hours or all
 * memory: src/tokenizer_limits.rs). Truncation and padding that the file may ask for are switched off: they are the
 * caller's business. config: optional, those of tokenizer_config.json, which for some tokenizer classes says what
 * special tokens are added (src/special_tokens.rs; TEXTKIT_DATA_LOSS if it cannot be read). */
textkit_status textkit_tokenizer_new(textkit_view json, textkit_view config, textkit_tokenizer** tokenizer,
                                     textkit_bytes* error);
void textkit_tokenizer_free(textkit_tokenizer* tokenizer);

typedef struct textkit_encode_options {
  bool add_special_tokens; /* the post-processor adds its own around those of the text */
  size_t max_tokens;  /* a text that is certain to have more: the call may return any of them, but more than this */
  size_t last_tokens; /* not 0: of all ids only so many, the last ones */
  bool plain;         /* tokens that the file adds to its vocabulary are not looked for: their letters are text. No
                         post-processor: add_special_tokens must be false */
  textkit_cancel cancel;
} textkit_encode_options;

/* Special tokens written out in `text` become their ids, unless it is plain. Time and memory go by the text that is
 * looked at: of one whose tokenizer is known to split it at spaces and signs, pieces of some ten thousand bytes one
 * after the other, which give the ids of the whole, until max_tokens or last_tokens are there; else the whole text, and
 * TEXTKIT_INVALID_ARGUMENT for one that is too long for that. TEXTKIT_INVALID_ARGUMENT also when a pattern of the file
 * backtracks without end on this text. */
textkit_status textkit_tokenizer_encode(const textkit_tokenizer* tokenizer, textkit_view text,
                                        const textkit_encode_options* options, textkit_ids* ids, textkit_bytes* error);

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
  textkit_view tool_use_jinja;     /* additional_chat_templates/tool_use.jinja: likewise */
} textkit_template_files;

/* Compiles the templates "default" and "tool_use". A folder without a template is no error: rendering is.
 * TEXTKIT_DATA_LOSS: one that does not compile, or that needs too many steps, too much memory or text for one word. */
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
  textkit_cancel cancel;
} textkit_template_input;

/* An exception that the template raises is TEXTKIT_INVALID_ARGUMENT with its message, and so is a template that runs
 * into the limits on its steps, its memory and its text for these messages. */
textkit_status textkit_template_render(const textkit_template* chat_template, const textkit_template_input* input,
                                       textkit_bytes* text, textkit_bytes* error);

/* ---- Pictures ---- */

/* Sizes that a model takes: sides are multiples of `side`, and so many pixels. */
typedef struct textkit_picture_rules {
  uint32_t side;
  uint64_t min_pixels, max_pixels;
} textkit_picture_rules;

/* A picture as the model sees it, turned as its EXIF data say, and the most bytes of memory that reading it takes. */
typedef struct textkit_picture_size {
  uint32_t width, height;
  uint64_t memory;
} textkit_picture_size;

/* file: a PNG, JPEG, WebP or GIF file, of which the first frame counts. Only its header is read.
 * TEXTKIT_INVALID_ARGUMENT: no such file, or more than 20 MiB, 16,384 pixels a side, 64 million pixels, or a side that
 * is 200 times the other. */
textkit_status textkit_picture_measure(textkit_view file, const textkit_picture_rules* rules,
                                       textkit_picture_size* size, textkit_bytes* error);
/* The same, and its pixels: rows of red, green and blue, a byte each, resampled as Pillow's bicubic does. Transparent
 * pixels lie on white. Errors as above, also for a damaged file, or one that takes more than `memory`. */
textkit_status textkit_picture_read(textkit_view file, const textkit_picture_rules* rules, textkit_cancel cancel,
                                    textkit_picture_size* size, textkit_bytes* rgb, textkit_bytes* error);

/* ---- Grammars ---- */

/* Compiles grammars for one tokenizer. Keeps compiled grammars and used matchers for the next request that asks for the
 * same text. It does not refer to the tokenizer afterwards. */
typedef struct textkit_grammars textkit_grammars;

/* Where one text stands in its grammar. It does not refer to the textkit_grammars afterwards. */
typedef struct textkit_matcher textkit_matcher;

/* Takes about a second for a vocabulary of 150,000. TEXTKIT_FAILED_PRECONDITION: tokens whose bytes cannot be told. */
textkit_status textkit_grammars_new(const textkit_tokenizer* tokenizer, textkit_grammars** grammars,
                                    textkit_bytes* error);
void textkit_grammars_free(textkit_grammars* grammars);

typedef enum textkit_grammar_kind {
  TEXTKIT_GRAMMAR_JSON_OBJECT = 0, /* text unused */
  TEXTKIT_GRAMMAR_JSON_SCHEMA = 1,
  TEXTKIT_GRAMMAR_REGEX = 2,  /* matches the whole text */
  TEXTKIT_GRAMMAR_CHOICE = 3, /* one of the choices */
  TEXTKIT_GRAMMAR_LARK = 4,
  TEXTKIT_GRAMMAR_EBNF = 5, /* GBNF; starts at root */
} textkit_grammar_kind;

/* lead: rules in Lark for what precedes the text (their rule "lead"; none may be named "start" or "text"), or empty:
 * nothing precedes it, as must be with LARK and EBNF. */
typedef struct textkit_grammar {
  textkit_grammar_kind kind;
  textkit_view text;
  const textkit_view* choices;
  size_t choices_size;
  textkit_view lead;
} textkit_grammar;

/* memory: bytes that all compiled grammars and matchers of a textkit_grammars may take together. Grammars that nobody
 *   matches go, the least recently used first, when they take more than half of it. Where matchers alone take more,
 *   nothing is compiled (TEXTKIT_EXHAUSTED), and a matcher that grows further fails.
 *   One grammar may take a quarter of it (TEXTKIT_INVALID_ARGUMENT). While it is compiled, which few are at once, it
 * may take so much beside the others. compile_ms: after that time the call fails with TEXTKIT_INVALID_ARGUMENT. The
 * work it began ends soon after, as it does when the caller cancels. */
typedef struct textkit_grammar_limits {
  uint64_t memory;
  uint32_t compile_ms;
  bool at_once;          /* TEXTKIT_EXHAUSTED rather than wait for others that compile */
  textkit_cancel cancel; /* asked on the calling thread alone */
} textkit_grammar_limits;

/* Calls of textkit_grammars_compile that compile at once. Others that would have to wait for one of these to end. */
#define TEXTKIT_MOST_COMPILING 4

/* Bytes that compiled grammars, those being compiled and matchers take now, compiled grammars that are kept, and
 * compilations under way, those among them that end at a limit. */
typedef struct textkit_grammar_usage {
  uint64_t bytes;
  uint64_t grammars;
  uint64_t compiling;
} textkit_grammar_usage;
textkit_grammar_usage textkit_grammars_usage(const textkit_grammars* grammars);

/* A matcher at the start of the text. TEXTKIT_INVALID_ARGUMENT says what is wrong with the grammar, or which limit
 * (size, nesting, complexity) it passes. */
textkit_status textkit_grammars_compile(const textkit_grammars* grammars, const textkit_grammar* grammar,
                                        const textkit_grammar_limits* limits, textkit_matcher** matcher,
                                        textkit_bytes* error);
void textkit_matcher_free(textkit_matcher* matcher);

/* Compiles a grammar as textkit_grammars_compile does and keeps it. notes: lines on what it takes otherwise than the
 * text says, mostly none. */
textkit_status textkit_grammars_check(const textkit_grammars* grammars, const textkit_grammar* grammar,
                                      const textkit_grammar_limits* limits, textkit_bytes* notes, textkit_bytes* error);

/* Whether textkit_grammars_compile would neither compile nor wait: it finds the grammar, or refuses it by its size. */
bool textkit_grammars_is_quick(const textkit_grammars* grammars, const textkit_grammar* grammar);

/* Ends what runs on a matcher: any thread may call textkit_stop_now() at any time, also while a function of the matcher
 * runs. That call and all later ones on the matcher fail soon with TEXTKIT_INVALID_ARGUMENT. */
typedef struct textkit_stop textkit_stop;
textkit_stop* textkit_matcher_stop(const textkit_matcher* matcher);
void textkit_stop_now(const textkit_stop* stop);
void textkit_stop_free(textkit_stop* stop);

typedef enum textkit_end {
  TEXTKIT_END_NO = 0,   /* the text is incomplete */
  TEXTKIT_END_MAY = 1,  /* it is complete, and more may follow */
  TEXTKIT_END_MUST = 2, /* it is complete, and nothing may follow: the mask is empty */
} textkit_end;

/* Which tokens may follow the committed ones and each prefix of drafted[size]. Row i of words ([size + 1][mask_words],
 * token v is bit v % 32 of word v / 32) is the mask after i drafted tokens; ends[i] (a textkit_end; size + 1 of them)
 * says whether the text may end there, which is no bit of the mask. Rows are filled up to the first drafted token that
 * the grammar refuses, or where the text must end: *rows says how many. What is filled depends on the grammar and the
 * tokens alone, not on earlier calls. TEXTKIT_INVALID_ARGUMENT: the grammar grew too complex; *rows is set, to the rows
 * before that, and the matcher can go on with other tokens. */
textkit_status textkit_matcher_masks(textkit_matcher* matcher, const int32_t* drafted, size_t size, uint32_t* words,
                                     size_t mask_words, uint8_t* ends, size_t* rows, textkit_bytes* error);

/* Tokens that are now part of the text; not the id that ends it. */
textkit_status textkit_matcher_commit(textkit_matcher* matcher, const int32_t* tokens, size_t size,
                                      textkit_bytes* error);

#ifdef __cplusplus
}
#endif
