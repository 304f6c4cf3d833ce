// Protects: a replaying drafter's folder is read as written, and a misspelt or ambiguous one is refused: a test with it
// would show less than it says.
#include "decode/replay/replay_spec.h"

#include "families/config_for_test.h"

namespace volley::decode::replay {
namespace {

constexpr const char* kConfig = R"({"architectures":["ReplayDraftModel"],"block_size":8,"accuracy":0.5,"salt":3})";
constexpr const char* kAnswers = "{\"seed\":1,\"token_ids\":[5,17]}\n{\"seed\":2,\"token_ids\":[]}\n";

Result<std::shared_ptr<const ProposerSpec>> read(const std::string& config, const std::string& answers) {
  const TempFolder folder;
  folder.write("config.json", config);
  folder.write("answers.jsonl", answers);
  return read_proposer(folder.path());
}

TEST(ReplaySpec, ReadsItsFolder) {
  const auto spec = read(kConfig, kAnswers);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ((*spec)->facts().proposals, 7);
  model::Decoder target;
  target.vocab = 18;
  EXPECT_TRUE((*spec)->check_target(target).ok());
  target.vocab = 17;
  EXPECT_FALSE((*spec)->check_target(target).ok()) << "token 17 is not in it";
}

TEST(ReplaySpec, RefusesWhatItWouldMisread) {
  const std::string misspelt = R"({"architectures":["ReplayDraftModel"],"block_size":8,"acuracy":0.5})";
  for (const auto& [config, answers, word] : std::vector<std::array<std::string, 3>>{
           {misspelt, kAnswers, "acuracy"},
           {kConfig, "{\"seed\":1}\n", "line 1"},
           {kConfig, std::string(kAnswers) + "{\"seed\":1,\"token_ids\":[4]}\n", "line 3"},
           {kConfig, "{\"seed\":1,\"token_ids\":[-4]}\n", "line 1"}}) {
    const auto spec = read(config, answers);
    ASSERT_FALSE(spec.ok()) << word;
    EXPECT_THAT(spec.error().message, testing::HasSubstr(word));
  }
}

TEST(ReplaySpec, ReadsRegularFilesAlone) {
  const TempFolder folder;
  folder.write("config.json", kConfig);
  const auto missing = read_proposer(folder.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  std::filesystem::create_directory(folder.path() + "/answers.jsonl");
  EXPECT_FALSE(read_proposer(folder.path()).ok());
}

}  // namespace
}  // namespace volley::decode::replay
