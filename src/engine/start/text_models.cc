#include "engine/start/text_models.h"

#include <algorithm>
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
  Result<std::string> render(const ChatMessages&) const override { return no_tokenizer(); }
};

}  // namespace

std::string tokenizer_dir(const EngineOptions& options) {
  if (options.tokenizer.empty()) return options.model_dir;
  const std::filesystem::path path = options.tokenizer;
  if (path.filename() != "tokenizer.json") return options.tokenizer;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

Result<TextModels> load_text(const EngineOptions& options, bool optional) {
  const std::string dir = tokenizer_dir(options);
  const std::filesystem::path path = dir;
  if (options.skip_tokenizer ||
      (optional && !std::filesystem::is_regular_file(path) && !std::filesystem::exists(path / "tokenizer.json"))) {
    return TextModels{std::make_shared<NoTokenizer>(), std::make_shared<NoChatTemplate>()};
  }
  TextModels models;
  VOLLEY_ASSIGN(models.tokenizer, text::Tokenizer::load(dir));
  VOLLEY_ASSIGN(const bool has_template, text::ChatTemplate::is_in(dir));
  VOLLEY_ASSIGN(models.chat_template, text::ChatTemplate::load(has_template ? dir : options.model_dir));
  return models;
}

std::vector<std::string> add_end_token(const text::Tokenizer& tokenizer, families::TargetConfig& target) {
  std::vector<std::string> warnings;
  const bool has_vocabulary = tokenizer.vocab_size() > 0;
  if (target.end_token && has_vocabulary) {
    const std::optional<TokenId> id = tokenizer.token_id(*target.end_token);
    if (!id || *id >= target.decoder.vocab) {
      warnings.push_back("The tokenizer's eos_token is \"" + *target.end_token + "\", which " +
                         (id ? "has an id past the model's vocabulary" : "its vocabulary does not have") +
                         ": it ends no answer.");
    } else if (std::ranges::find(target.eos_ids, *id) == target.eos_ids.end()) {
      target.eos_ids.push_back(*id);
    }
  }
  if (target.eos_ids.empty() && has_vocabulary) {
    warnings.push_back(
        "No token ends an answer of this model, so answers go on until their limit: name one as \"eos_token_id\" in "
        "generation_config.json, or as \"eos_token\" in tokenizer_config.json.");
  }
  return warnings;
}

}  // namespace volley::engine
