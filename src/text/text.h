// Text in and out of token ids: tokenizer, chat template, incremental detokenization, stop strings. The C++ face of
// textkit (Rust: Hugging Face tokenizers, minijinja); grammars are in text/grammar.h.
#pragma once

#include <volley/engine.h>
#include <volley/result.h>
#include <volley/sampling.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::text {

class GrammarCompiler;  // text/grammar.h

// Immutable; any thread.
class Tokenizer {
 public:
  // Loads DIR/tokenizer.json, with the special tokens that tokenizer_config.json adds for its tokenizer_class.
  // kNotFound and kDataLoss name the file.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& dir);
  virtual ~Tokenizer() = default;

  // text must be valid UTF-8 (kInvalidArgument with the offset of the first bad byte otherwise). Special tokens inside
  // the text are recognised, as in transformers.
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const {
    return encode_within(text, add_special_tokens, {});
  }
  // The same for texts of any length. Where the tokenizer's form allows a text to be split, time and memory depend only
  // on the requested tokens (docs in textkit.h). kInvalidArgument also for a text that is too long and cannot be split;
  // kCancelled.
  virtual Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                                     const EncodeLimits& limits) const = 0;
  // Invalid byte sequences become U+FFFD. Ids outside the vocabulary are left out. A decoder that fails on these ids (a
  // tokenizer.json with contradictory settings) gives one U+FFFD.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;
  virtual int32_t vocab_size() const = 0;  // with added tokens
  // The id of this token as the vocabulary spells it.
  virtual std::optional<TokenId> token_id(std::string_view token) const = 0;
  // Compiles grammars over this vocabulary; lives as long as the tokenizer. Null where there is no vocabulary.
  virtual const GrammarCompiler* grammars() const { return nullptr; }
};

// The chat templates of chat_template.jinja and additional_chat_templates/, else of tokenizer_config.json (a string, or
// named ones): "default" and, for requests with tools, "tool_use". They render as in Python's Jinja2 (unsupported
// features are refused at load, or fail; tests/data/README.md). Immutable; any thread.
//
// The template sees the same variables as in transformers: messages, tools (none without any), add_generation_prompt,
// the special tokens by name (bos_token, …), documents, the arguments of the request, raise_exception, strftime_now.
// Three things are done to messages before, because clients and templates disagree:
// - content as an array of text parts is joined with line breaks for a template that prints strings only, and a string
//   is wrapped into an array for one that prints arrays only. Which one it is, is found at load by rendering a word
//   both ways.
// - an assistant's content that is null or missing, as in a turn of tool calls only, becomes empty text for a template
//   that cannot print it (found at load too).
// - arguments of tool calls that arrive as JSON text become the object.
class ChatTemplate {
 public:
  // A model without a template loads too; render() then answers kFailedPrecondition and says what to do. A template
  // that does not compile, or a damaged file, is kDataLoss.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::string& dir);
  // Whether the folder, or GGUF file, has one.
  static Result<bool> is_in(const std::string& dir);
  virtual ~ChatTemplate() = default;

  // kInvalidArgument: JSON of another shape than ChatMessages says, an exception that the template raises (with its
  // message), or a template that fails on these messages, takes too long or prints too much. kCancelled; kUnavailable:
  // no thread.
  virtual Result<std::string> render(const ChatMessages& chat) const = 0;
};

// Turns a growing list of ids into text pieces: only whole UTF-8 sequences, the concatenation equal to decoding the
// whole list at once, however the ids are split into pushes. One thread at a time.
//
// Each push decodes its own ids and a few before them, never the whole list. U+FFFD at the end is held back while it
// may be an unfinished character: for four ids at most, and after that only the last one.
//
// `context`: earlier ids whose text these continue, so that a decoder's treatment of the start of a text, e.g.
// stripping a space, is not applied. Ids that show no text, or end in half a character, are ignored as context.
//
// This requires a decoder with which text does not change after its last character is complete. Byte-level, WordPiece,
// Metaspace and stripping decoders are such. ByteFallback is for valid UTF-8 only: in decoding at once, a single bad
// byte turns the whole run of byte tokens around it into U+FFFD; here text that was given out before that byte stays,
// as if every id came alone.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
              std::span<const TokenId> context = {});
  std::string push(std::span<const TokenId> ids);  // text that is certain now
  std::string finish();  // the text held back (incomplete sequences as U+FFFD); the next push begins a new text

 private:
  std::string decode(size_t begin, size_t end) const;
  std::string advance(const std::string& text);
  std::string show(size_t end, const std::string& text);
  std::string restart();
  void shrink(size_t end, const std::string& text);
  void drop_traceless(size_t begin);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  std::vector<TokenId> window_;  // the last ids: some context, then what is not shown yet
  std::string shown_;            // a prefix of the text of window_: given out already
  size_t shown_ids_ = 0;         // ids of window_ whose text is given out in full
};

// Finds the first of several stop strings in a growing text and holds back text that might still become one. One
// thread.
//
// The match is the one that is complete first; of several that end at the same byte, the longest. It does not depend on
// how the text is split into pushes. Texts and stop strings of whole UTF-8 sequences give outputs of whole sequences.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // REQUIRES: none is empty. May be none at all.

  struct Output {
    std::string text;                  // may be shown: no part of this text can belong to a stop string
    std::optional<std::string> match;  // the stop string found; text ends before it, later pushes return nothing
  };
  // `counts`: whether a stop string that ends within this text counts. One that begins in it may end later.
  Output push(std::string_view text, bool counts = true);
  std::string finish();  // at the end of the text: returns the text held back; later pushes return nothing

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // [i]: longest proper prefix of text that ends text[0, i]
    size_t matched = 0;           // longest prefix of text that ends the pushed text

    void advance(char c);  // REQUIRES: not complete
    bool complete() const { return matched == text.size(); }
  };

  std::vector<Stop> stops_;
  std::string held_;
  bool done_ = false;
};

}  // namespace volley::text
