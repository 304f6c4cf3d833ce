// The verify budget from a user's side: policies, their counters, and simulated acceptance. invariance_test checks that
// texts do not depend on any of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "harness.h"

namespace volley::testing {
namespace {

using Kind = VerifyPolicy::Kind;

constexpr const char* kStory = "Tell me a story about a dog and a ladder.";

// Random weights: simulated acceptance ignores the target's choices.
std::unique_ptr<Engine> random_engine() {
  EngineOptions options = pocket_options();
  options.dummy_weights = 1;
  return make_engine(options);
}

GenerateRequest endless(const Engine& engine, int32_t tokens) {
  GenerateRequest request = chat_request(engine, kStory, tokens);
  request.ignore_eos = true;
  return request;
}

// The counters after all requests have ended: the engine publishes them between steps.
EngineStats settled(const Engine& engine) {
  for (int i = 0; i < 60'000; ++i) {
    const EngineStats stats = engine.stats();
    if (stats.requests_running + stats.requests_waiting == 0) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "requests still run";
  return engine.stats();
}

TEST(Verify, FixedNumbersVerifyThatMany) {
  const auto engine = make_engine(pocket_options());
  const auto whole = run_all(*engine, {endless(*engine, 100)}, 1)[0];
  EXPECT_GT(std::ranges::max(whole.finish.tokens_per_step), 4);
  for (const int tokens : {3, 0}) {
    ASSERT_TRUE(engine->set_verify({Kind::kFixed, tokens}).ok());
    const EngineStats before = settled(*engine);
    const auto out = run_all(*engine, {endless(*engine, 100)}, 1)[0];
    const EngineStats after = settled(*engine);
    EXPECT_EQ(out.tokens, whole.tokens);
    EXPECT_LE(std::ranges::max(out.finish.tokens_per_step), tokens + 1);
    if (tokens > 0) EXPECT_EQ(std::ranges::max(out.finish.tokens_per_step), tokens + 1);
    EXPECT_GT(after.verify.draft_lengths[tokens], before.verify.draft_lengths[tokens]);
    EXPECT_EQ(after.verify.draft_lengths[15], before.verify.draft_lengths[15]);
    if (tokens == 0) {
      EXPECT_GE(after.verify.plain - before.verify.plain, 99);
    }
  }
}

TEST(Verify, RefusesWhatItCannotDo) {
  EngineOptions options = pocket_options();
  {
    const auto engine = make_engine(options);
    EXPECT_EQ(engine->set_verify({Kind::kFixed, 16}).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(engine->set_verify({Kind::kFixed, -1}).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(engine->set_verify({Kind::kAuto, 0}).error().code, ErrorCode::kFailedPrecondition);
    EXPECT_TRUE(engine->set_verify({Kind::kFull, 0}).ok());
  }
  options.speculation = Speculation::kOff;
  const auto plain = make_engine(options);
  EXPECT_EQ(plain->set_verify({Kind::kFull, 0}).error().code, ErrorCode::kFailedPrecondition);
}

TEST(Verify, WhatAStepCostsIsMeasuredOnce) {
  EngineOptions options = pocket_options();
  options.max_num_seqs = 7;  // as no other test has it
  const auto full = make_engine(options);
  const auto expected = run_all(*full, {endless(*full, 200)}, 1)[0].tokens;
  options.verify.kind = Kind::kAuto;
  for (const bool first : {true, false}) {
    std::set<std::string> phases;
    auto engine = Engine::create(options, [&](std::string_view phase, double) { phases.emplace(phase); });
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    EXPECT_EQ(phases.contains("Measuring rounds"), first);
    EXPECT_EQ((*engine)->stats().device_s, 0) << "measurements are no part of the counters";
    EXPECT_EQ(run_all(**engine, {endless(**engine, 200)}, 1)[0].tokens, expected);
    const EngineStats::Verify verify = settled(**engine).verify;
    EXPECT_GT(verify.predicted_s, 0);
    EXPECT_GT(verify.measured_s, 0);
    EXPECT_GT(verify.predicted_tokens, 0);
    EXPECT_NE(verify.last.find("expected"), std::string::npos) << verify.last;
    EXPECT_EQ(std::accumulate(verify.draft_lengths.begin(), verify.draft_lengths.end(), int64_t{0}), verify.steps);
    // From auto to any other policy and back.
    ASSERT_TRUE((*engine)->set_verify({Kind::kFixed, 2}).ok());
    EXPECT_LE(std::ranges::max(run_all(**engine, {endless(**engine, 50)}, 1)[0].finish.tokens_per_step), 3);
    ASSERT_TRUE((*engine)->set_verify({Kind::kAuto, 0}).ok());
  }
}

TEST(Verify, ACostFileThatCannotBeWrittenIsAWarning) {
  EngineOptions options = pocket_options();
  options.verify.kind = Kind::kAuto;
  options.max_num_seqs = 1;
  options.cost_cache_dir = "/proc/no-folder-can-be-made-here";
  const auto engine = make_engine(options);
  ASSERT_EQ(engine->info().warnings.size(), 1u);
  EXPECT_NE(engine->info().warnings[0].find(options.cost_cache_dir), std::string::npos) << engine->info().warnings[0];
}

// Requests of one engine may differ in it, and each may change over its steps.
TEST(Verify, SimulatedAcceptanceIsARequestsOwn) {
  const auto engine = random_engine();
  std::vector<GenerateRequest> requests(3, endless(*engine, 161));
  requests[0].simulate_acceptance = SimulatedAcceptance{{{0, 1.0}}};
  requests[1].simulate_acceptance = SimulatedAcceptance{{{0, 0.0}}};
  requests[2].simulate_acceptance = SimulatedAcceptance{{{0, 1.0}, {3, 0.0}, {6, 1.0}}};
  const auto outputs = run_all(*engine, requests, 3);
  EXPECT_EQ(outputs[0].finish.tokens_per_step, std::vector<int32_t>(10, 16));
  EXPECT_EQ(outputs[1].finish.tokens_per_step, std::vector<int32_t>(160, 1));
  const std::vector<int32_t> expected = {16, 16, 16, 1, 1, 1, 16, 16, 16, 16, 16, 16, 13};
  EXPECT_EQ(outputs[2].finish.tokens_per_step, expected);
  // With probabilities of 0 and 1 as many as were committed, but for a last block that was drafted past the end.
  EXPECT_NEAR(settled(*engine).verify.expected_tokens, 3 * 160, 16);
}

TEST(Verify, SimulatedStepsCommitWhatIsExpectedInTheMean) {
  const auto engine = random_engine();
  GenerateRequest request = endless(*engine, kSanitized ? 200 : 1500);
  request.simulate_acceptance = SimulatedAcceptance{{{0, 0.8}}};
  run_all(*engine, std::vector<GenerateRequest>(8, request), 8);
  const EngineStats stats = settled(*engine);
  const double tokens = static_cast<double>(stats.accepted_tokens + stats.verify_steps);
  EXPECT_NEAR(stats.verify.expected_tokens / tokens, 1, kSanitized ? 0.15 : 0.06);
}

}  // namespace
}  // namespace volley::testing
