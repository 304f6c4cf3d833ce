// Protects: an answer ends at the tokens that the model's files name, and a model without any is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_folder_for_test.h"
#include "engine/start/text_models.h"

namespace volley::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Has two tokens; the model has no row for the second.
class Words final : public text::Tokenizer {
 public:
  explicit Words(int32_t size = 40) : size_(size) {}
  Result<std::vector<TokenId>> encode_within(std::string_view, bool, const EncodeLimits&) const override {
    return internal_error("not asked for");
  }
  std::string decode(std::span<const TokenId>, bool) const override { return {}; }
  int32_t vocab_size() const override { return size_; }
  std::optional<TokenId> token_id(std::string_view token) const override {
    if (token == "<end>") return 3;
    return token == "<far>" ? std::optional<TokenId>(39) : std::nullopt;
  }

 private:
  int32_t size_;
};

struct Outcome {
  std::vector<TokenId> ids;
  std::vector<std::string> warnings;
};

Outcome outcome(std::vector<TokenId> ids, std::optional<std::string> token, const Words& tokenizer = Words()) {
  families::TargetConfig target;
  target.decoder.vocab = 39;
  target.eos_ids = std::move(ids);
  target.end_token = std::move(token);
  std::vector<std::string> warnings = add_end_token(tokenizer, target);
  return {target.eos_ids, std::move(warnings)};
}

TEST(EndIds, TheTokenizersTokenIsOneMore) {
  EXPECT_THAT(outcome({0}, "<end>").ids, ElementsAre(0, 3));
  EXPECT_THAT(outcome({}, "<end>").ids, ElementsAre(3));
  EXPECT_THAT(outcome({3, 0}, "<end>").ids, ElementsAre(3, 0));
  EXPECT_THAT(outcome({5}, std::nullopt).ids, ElementsAre(5));
  for (const auto& good : {outcome({0}, "<end>"), outcome({5}, std::nullopt)}) EXPECT_TRUE(good.warnings.empty());
}

TEST(EndIds, ATokenThatTheModelCannotMakeIsNamed) {
  const Outcome missing = outcome({0}, "<none>"), far = outcome({0}, "<far>");
  EXPECT_THAT(missing.ids, ElementsAre(0));
  EXPECT_THAT(missing.warnings, ElementsAre(HasSubstr("\"<none>\", which its vocabulary does not have")));
  EXPECT_THAT(far.ids, ElementsAre(0));
  EXPECT_THAT(far.warnings, ElementsAre(HasSubstr("\"<far>\", which has an id past")));
}

TEST(EndIds, AModelThatNothingEndsIsSaidToBeOne) {
  EXPECT_THAT(outcome({}, std::nullopt).warnings, ElementsAre(HasSubstr("No token ends an answer")));
  EXPECT_THAT(outcome({}, "<none>").warnings, ElementsAre(HasSubstr("<none>"), HasSubstr("No token ends an answer")));
  EXPECT_TRUE(outcome({}, "<end>", Words(0)).warnings.empty()) << "without a tokenizer nothing is known";
}

// The model's own chat template counts where the other folder has none.
TEST(TextModels, AnotherFoldersTokenizerIsTaken) {
  const TempFolder model, bare;
  model.write("tokenizer_config.json", R"({"chat_template": "of the model"})");
  EngineOptions options;
  options.model_dir = model.path();
  EXPECT_THAT(load_text(options, false).error().message, HasSubstr("--tokenizer FILE"));
  const auto prompt = [&](const std::string& tokenizer) {
    options.tokenizer = tokenizer;
    const auto text = load_text(options, false);
    EXPECT_TRUE(text.ok()) << text.error().message;
    EXPECT_GT(text->tokenizer->vocab_size(), 0);
    return text->chat_template->render({.messages_json = R"([{"role": "user", "content": "Hi"}])"}).value();
  };
  for (const char* name : {"models/pocket", "models/pocket/tokenizer.json"}) EXPECT_THAT(prompt(name), HasSubstr("Hi"));
  std::filesystem::copy("models/pocket/tokenizer.json", bare.path());
  EXPECT_EQ(prompt(bare.path()), "of the model");
}

}  // namespace
}  // namespace volley::engine
