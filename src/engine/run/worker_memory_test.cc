// Protects requests when memory for a prompt's logprobs is missing, and when masks are late.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/sanitized.h"
#include "engine/device_testing.h"
#include "engine/run/worker_for_test.h"
#include "text/grammar.h"

namespace volley::engine {
namespace {

class WorkerMemory : public WorkerTest, public ::testing::WithParamInterface<TestedRank> {
 protected:
  void SetUp() override {
    EngineOptions options = plain_options();
    options.grammar_mask_timeout_ms = mask_timeout_ms_;
    options.tensor_parallel_size = GetParam().ranks;
    worker_ = std::make_unique<Worker>(make_parts(options, [this](std::unique_ptr<Device> device, int rank) {
      if (rank != GetParam().rank) return device;
      auto watched = std::make_unique<WatchedDevice>(std::move(device));
      device_ = watched.get();
      return std::unique_ptr<Device>(std::move(watched));
    }));
  }

  // Starts both kinds of request in one step, while the engine's thread is busy with a long prompt.
  struct Ends {
    Finish plain, grammar, logprobs;
  };
  Ends run_all_kinds() {
    GenerateRequest long_prompt = request_of(kSanitized ? 300 : 1500);
    long_prompt.max_tokens = kSanitized ? 50 : 200;
    auto plain = submit(std::move(long_prompt));
    GenerateRequest constrained = request_of(3);
    constrained.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kRegex, .text = "[a-z]{20}", .choices = {}};
    GenerateRequest scored = request_of(300);
    scored.prompt_logprobs = 2;
    auto grammar = submit(std::move(constrained));
    auto logprobs = submit(std::move(scored));
    return {plain.get(), grammar.get(), logprobs.get()};
  }

  WatchedDevice* device_ = nullptr;
  int mask_timeout_ms_ = 3'600'000;  // a slow machine is no failure
};

TEST_P(WorkerMemory, IsEnoughForAll) {
  const Ends ends = run_all_kinds();
  EXPECT_FALSE(ends.plain.error.has_value());
  EXPECT_FALSE(ends.grammar.error.has_value());
  EXPECT_FALSE(ends.logprobs.error.has_value());
}

TEST_P(WorkerMemory, WithoutThatForLogprobsGrammarsGoOn) {
  device_->refuse = [](size_t) { return true; };
  const Ends ends = run_all_kinds();
  EXPECT_FALSE(ends.plain.error.has_value());
  EXPECT_FALSE(ends.grammar.error.has_value());
  ASSERT_TRUE(ends.logprobs.error.has_value());
  EXPECT_EQ(ends.logprobs.error->code, ErrorCode::kResourceExhausted);
}

// A grammar whose masks never come until it is told to stop.
class EndlessMatcher final : public text::Matcher {
 public:
  explicit EndlessMatcher(int good) : good_(good) {}

  Filled masks_along(std::span<const TokenId>, uint32_t* words, int32_t mask_words, text::TextEnd* ends) override {
    if (good_-- > 0) {
      std::fill_n(words, mask_words, ~0u);
      ends[0] = text::TextEnd::kNo;
      return {1, {}};
    }
    while (!stopped_) std::this_thread::yield();
    return {0, invalid_argument("stopped")};
  }
  Status commit(std::span<const TokenId>) override { return {}; }
  void stop() override { stopped_ = true; }

 private:
  int good_;  // fills that succeed first
  std::atomic<bool> stopped_{false};
};

// Allows every token `good` times, and then fails. `life` ends with it.
class FailingMatcher final : public text::Matcher {
 public:
  FailingMatcher(int good, std::shared_ptr<int> life) : good_(good), life_(std::move(life)) {}

  Filled masks_along(std::span<const TokenId>, uint32_t* words, int32_t mask_words, text::TextEnd* ends) override {
    if (good_-- <= 0) return {0, invalid_argument("it says no")};
    std::fill_n(words, mask_words, ~0u);
    ends[0] = text::TextEnd::kNo;
    return {1, {}};
  }
  Status commit(std::span<const TokenId>) override { return {}; }
  void stop() override {}

 private:
  int good_;
  std::shared_ptr<int> life_;
};

// A grammar may hold much memory, and its clients wait for the sum of all.
TEST_P(WorkerMemory, AGrammarEndsWithItsRequestAlsoWhereNoStepFollows) {
  for (const int good : {0, 1000}) {
    const auto life = std::make_shared<int>();
    submit(request_of(3), std::make_unique<FailingMatcher>(good, life), nullptr).get();
    for (int i = 0; i < 10'000 && life.use_count() > 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(life.use_count(), 1) << good;
  }
}

class WorkerMaskTimeout : public WorkerMemory {
 protected:
  WorkerMaskTimeout() { mask_timeout_ms_ = 20; }
};

// A request whose masks are late ends with an error and the tokens that it had. The others go on, with the tokens that
// they have without it.
TEST_P(WorkerMaskTimeout, EndsTheRequestThatIsLateAlone) {
  GenerateRequest plain = request_of(40);
  plain.max_tokens = 60;
  std::vector<TokenId> alone, beside, late_tokens;
  EXPECT_FALSE(submit(plain, nullptr, &alone).get().error.has_value());
  for (const int good : {0, 3}) {
    beside.clear();
    late_tokens.clear();
    GenerateRequest late = request_of(3);
    late.max_tokens = 50;
    auto others = submit(plain, nullptr, &beside);
    const Finish ended = submit(late, std::make_unique<EndlessMatcher>(good), &late_tokens).get();
    EXPECT_EQ(ended.reason, FinishReason::kError);
    ASSERT_TRUE(ended.error.has_value());
    // On a busy machine the grammar may not have had the time to count as late.
    const ErrorCode code = ended.error->code;
    EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnavailable) << ended.error->message;
    EXPECT_NE(ended.error->message.find("--grammar-mask-timeout-ms"), std::string::npos);
    EXPECT_LE(late_tokens.size(), static_cast<size_t>(good));
    EXPECT_FALSE(others.get().error.has_value());
    EXPECT_EQ(beside, alone);
  }
}

constexpr TestedRank kRanks[] = {{1, 0}, {2, 1}};
INSTANTIATE_TEST_SUITE_P(Ranks, WorkerMemory, ::testing::ValuesIn(kRanks), name_of_rank);
INSTANTIATE_TEST_SUITE_P(Ranks, WorkerMaskTimeout, ::testing::ValuesIn(kRanks), name_of_rank);

}  // namespace
}  // namespace volley::engine
