// Text in and out of token ids: tokenizer, chat template, incremental detokenization, stop strings. The C++ face of
// textkit (Rust: Hugging Face tokenizers, minijinja).
#pragma once

#include <volley/result.h>
#include <volley/sampling.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::text {

// Immutable; any thread.
class Tokenizer {
 public:
  // DIR/tokenizer.json. kNotFound, kDataLoss name the file.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& dir);
  virtual ~Tokenizer() = default;

  // text must be valid UTF-8 (kInvalidArgument otherwise). Special tokens inside the text are recognised, as in transformers.
  virtual Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const = 0;
  // Invalid byte sequences become U+FFFD. Ids outside the vocabulary are left out.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;
  virtual int32_t vocab_size() const = 0;  // with added tokens
  virtual std::optional<TokenId> token_id(std::string_view token) const = 0;
};

// The chat template of tokenizer_config.json or chat_template.jinja. Immutable; any thread.
class ChatTemplate {
 public:
  // A model without a template loads too; render() then answers kFailedPrecondition and says what to do.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::string& dir);
  virtual ~ChatTemplate() = default;

  struct Input {
    std::string_view messages_json;  // array of {role, content, …}
    std::string_view tools_json;     // array, or empty
    std::string_view kwargs_json;    // object, or empty
    bool add_generation_prompt = true;
    bool continue_final_message = false;
  };
  virtual Result<std::string> render(const Input& input) const = 0;
};

// Turns a growing list of ids into text pieces: only whole UTF-8 sequences, the concatenation equal to decoding the whole
// list at once. One thread at a time.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens);
  std::string push(std::span<const TokenId> ids);  // text that is certain now
  std::string finish();                            // what was held back (incomplete sequences as U+FFFD)

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  std::vector<TokenId> window_;  // ids since the last safe cut
  size_t prefix_ids_ = 0;        // of those, already printed
};

// Finds the first of several stop strings in a growing text and holds back what might still become one. One thread.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  struct Output {
    std::string text;                  // may be shown: no part of it can belong to a stop string
    std::optional<std::string> match;  // the stop string found; text ends before it, later pushes return nothing
  };
  Output push(std::string_view text);
  std::string finish();  // the end came without a match: what was held back

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace volley::text
