#include "engine/text_models.h"

#include <filesystem>

namespace volley::engine {
namespace {

Error no_tokenizer() {
  return failed_precondition("There is no tokenizer (tokenizer.json): give prompts as token ids.");
}

class NoTokenizer final : public text::Tokenizer {
 public:
  Result<std::vector<TokenId>> encode_within(std::string_view, bool, const EncodeLimits&) const override {
    return no_tokenizer();
  }
  std::string decode(std::span<const TokenId>, bool) const override { return {}; }
  int32_t vocab_size() const override { return 0; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
};

class NoChatTemplate final : public text::ChatTemplate {
 public:
  Result<std::string> render(const Input&) const override { return no_tokenizer(); }
};

}  // namespace

Result<TextModels> load_text(const std::string& dir, bool skip, bool optional) {
  if (skip || (optional && !std::filesystem::exists(std::filesystem::path(dir) / "tokenizer.json"))) {
    return TextModels{std::make_shared<NoTokenizer>(), std::make_shared<NoChatTemplate>()};
  }
  TextModels models;
  VOLLEY_ASSIGN(models.tokenizer, text::Tokenizer::load(dir));
  VOLLEY_ASSIGN(models.chat_template, text::ChatTemplate::load(dir));
  return models;
}

}  // namespace volley::engine
