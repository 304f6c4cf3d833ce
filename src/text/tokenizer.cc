#include <textkit.h>

#include <type_traits>

#include "gguf/config.h"
#include "text/grammar_compiler.h"
#include "text/model_file.h"
#include "text/text.h"
#include "text/textkit_handle.h"

namespace volley::text {
namespace {

static_assert(std::is_same_v<TokenId, int32_t>, "textkit's ids are int32_t");

class TextkitTokenizer final : public Tokenizer {
 public:
  explicit TextkitTokenizer(textkit_tokenizer* handle) : handle_(handle), grammars_(make_grammar_compiler(handle)) {}
  ~TextkitTokenizer() override { textkit_tokenizer_free(handle_); }
  TextkitTokenizer(const TextkitTokenizer&) = delete;
  TextkitTokenizer& operator=(const TextkitTokenizer&) = delete;

  Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                             const EncodeLimits& limits) const override {
    const textkit_encode_options options{add_special_tokens && !limits.plain, limits.max_tokens, limits.last_tokens,
                                         limits.plain, cancel_of(limits.cancelled)};
    OwnedIds ids;
    OwnedBytes error;
    const textkit_status status = textkit_tokenizer_encode(handle_, view(text), &options, ids.out(), error.out());
    if (status != TEXTKIT_OK) return textkit_error(status, error);
    return ids.vector();
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    OwnedBytes text, error;
    const textkit_status status =
        textkit_tokenizer_decode(handle_, ids.data(), ids.size(), skip_special_tokens, text.out(), error.out());
    return status == TEXTKIT_OK ? text.str() : "\uFFFD";
  }

  int32_t vocab_size() const override { return textkit_tokenizer_vocab_size(handle_); }

  std::optional<TokenId> token_id(std::string_view token) const override {
    const int32_t id = textkit_tokenizer_token_id(handle_, view(token));
    return id < 0 ? std::nullopt : std::optional<TokenId>(id);
  }

  const GrammarCompiler* grammars() const override { return grammars_.get(); }

 private:
  textkit_tokenizer* handle_;
  std::unique_ptr<GrammarCompiler> grammars_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  VOLLEY_ASSIGN(auto json, read_model_file(path));
  VOLLEY_ASSIGN(const auto config, read_model_file(dir + "/tokenizer_config.json"));
  if (!json) {
    VOLLEY_ASSIGN(const auto ranks, read_model_file(dir + "/tiktoken.model"));
    if (ranks) {
      VOLLEY_ASSIGN(json, gguf::tiktoken_json(dir + "/tiktoken.model", *ranks, config.value_or("")));
    }
  }
  if (!json)
    return not_found(path +
                     " does not exist: name the tokenizer.json of the model's checkpoint with --tokenizer FILE.");
  textkit_tokenizer* handle = nullptr;
  OwnedBytes error;
  const textkit_status status = textkit_tokenizer_new(view(*json), optional_view(config), &handle, error.out());
  if (status != TEXTKIT_OK) return textkit_error(status, error, path + " is not a tokenizer that can be used: ");
  return std::shared_ptr<const Tokenizer>(std::make_shared<TextkitTokenizer>(handle));
}

}  // namespace volley::text
