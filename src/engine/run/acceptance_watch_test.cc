// Protects: the user of a useless drafter is warned once, with the likely reasons, and no other user is.
#include "engine/run/acceptance_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <volley/engine.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

namespace volley::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kBlocks = AcceptanceWatch::kBlocks;

// Returns the warnings after `blocks` blocks, of which every `period`-th has an accepted token (0: none).
std::vector<std::string> watch(AcceptanceWatch watch, int32_t blocks, int32_t period) {
  std::vector<std::string> warnings;
  for (int32_t i = 0; i < blocks; ++i) {
    if (auto warning = watch.see(15, period > 0 && i % period == 0 ? 1 : 0)) warnings.push_back(*warning);
  }
  return warnings;
}

TEST(AcceptanceWatch, SpeaksOnceWhenItHasSeenEnough) {
  EXPECT_EQ(watch(AcceptanceWatch({}), kBlocks - 1, 0).size(), 0u);
  const auto warnings = watch(AcceptanceWatch({}), 10 * kBlocks, 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("256 verified blocks gave 1.00 tokens a step"), Not(HasSubstr("; ")),
                                 Not(HasSubstr("--draft-window-mask")), Not(HasSubstr("--draft-quantization"))));
}

TEST(AcceptanceWatch, NamesWhatCanBeWrongWithThisDrafter) {
  EXPECT_THAT(watch(AcceptanceWatch({.likely_mistake = "its layers are off by one"}), kBlocks, 0)[0],
              HasSubstr("; its layers are off by one"));
  EXPECT_THAT(watch(AcceptanceWatch({.windows = true}), kBlocks, 0)[0], HasSubstr("--draft-window-mask"));
  EXPECT_THAT(watch(AcceptanceWatch({.quantised = true}), kBlocks, 0)[0], HasSubstr("--draft-quantization none"));
  EXPECT_THAT(watch(AcceptanceWatch({.name = "A"}), kBlocks, 0)[0], HasSubstr("The drafter A is of no use"));
}

TEST(AcceptanceWatch, APoorDrafterIsNotAUselessOne) {
  EXPECT_EQ(watch(AcceptanceWatch({}), kBlocks, 16).size(), 0u) << "6 % of the blocks are of use";
  EXPECT_EQ(watch(AcceptanceWatch({}), kBlocks, 32).size(), 1u) << "3 % are not enough";
}

TEST(AcceptanceWatch, BlocksWithoutDraftsSayNothing) {
  AcceptanceWatch watch({});
  for (int32_t i = 0; i < 10 * kBlocks; ++i) EXPECT_FALSE(watch.see(0, 0));
}

// Engines with a drafter of chosen quality (decode/replay), which has recorded answers for some requests.
class WatchedEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("volley-watch-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({"architectures":["ReplayDraftModel"],"block_size":4})";
    std::ofstream(folder_ / "answers.jsonl") << "";
    options_.model_dir = "tests/data/targets/plain";
    options_.draft_dir = folder_.string();
    options_.device = "cpu";
    options_.skip_tokenizer = true;
    options_.threads = 1;
    options_.max_num_seqs = 4;
    options_.verify = {VerifyPolicy::Kind::kFull};
    options_.on_warning = [this](const std::string& warning) { warnings_.push_back(warning); };
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs eight requests of 100 tokens: some 800 blocks if no draft is accepted.
  void run() {
    auto engine = Engine::create(options_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    std::mutex mutex;
    std::condition_variable changed;
    int open = 8;
    for (int i = 0; i < 8; ++i) {
      GenerateRequest request;
      request.prompt = {5, 9, static_cast<TokenId>(i)};
      request.sampling.temperature = 1.0f;
      request.sampling.seed = 40 + i;
      request.ignore_eos = true;
      request.max_tokens = 100;
      request.simulate_acceptance = simulated_;
      ASSERT_TRUE((*engine)
                      ->submit(std::move(request),
                               [&](const Event& event) {
                                 if (!event.finish) return;
                                 const std::lock_guard lock(mutex);
                                 --open;
                                 changed.notify_all();
                               })
                      .ok());
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
    engine->reset();  // ends the engine's thread, which writes warnings_
  }

  std::filesystem::path folder_;
  EngineOptions options_;
  std::optional<SimulatedAcceptance> simulated_;
  std::vector<std::string> warnings_;
};

TEST_F(WatchedEngine, SaysThatItsDrafterIsOfNoUse) {
  run();
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("The drafter is of no use"));
}

TEST_F(WatchedEngine, SaysNothingWhenAcceptanceIsSimulated) {
  simulated_ = SimulatedAcceptance{{{0, 0.0}}};
  run();
  EXPECT_EQ(warnings_.size(), 0u);
}

TEST_F(WatchedEngine, SaysNothingToWhoDoesNotListen) {
  options_.on_warning = {};
  run();
}

}  // namespace
}  // namespace volley::engine
