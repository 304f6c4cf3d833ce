// Protects the figures that runs are judged by.
#include "apps/client/statistics.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

using std::chrono::milliseconds;

Finish finish_of(int prompt, std::vector<int32_t> steps, double ttft_s, double total_s) {
  Finish finish;
  finish.usage.prompt_tokens = prompt;
  finish.usage.completion_tokens = 1;
  for (const int32_t tokens : steps) finish.usage.completion_tokens += tokens;
  finish.usage.ttft_s = ttft_s;
  finish.usage.total_s = total_s;
  finish.tokens_per_step = std::move(steps);
  return finish;
}

TEST(Percentiles, InterpolateBetweenRanks) {
  EXPECT_EQ(percentiles({}).p50, 0);
  EXPECT_EQ(percentiles({7}).p99, 7);
  EXPECT_DOUBLE_EQ(percentiles({4, 1, 3, 2}).p50, 2.5);
  EXPECT_DOUBLE_EQ(percentiles({0, 100}).p99, 99);
}

TEST(RunRecorder, OneRequest) {
  RunRecorder recorder;
  const Clock::time_point begin{};
  recorder.on_start(begin);
  recorder.on_first_token(begin + milliseconds(20));
  recorder.on_finish(begin + milliseconds(120), finish_of(10, {4, 6}, 0.02, 0.12), true);
  const RunSummary summary = recorder.summary();
  EXPECT_EQ(summary.requests, 1);
  EXPECT_EQ(summary.prompt_tokens, 10);
  EXPECT_EQ(summary.completion_tokens, 11);
  EXPECT_EQ(summary.steps, 2);
  EXPECT_DOUBLE_EQ(summary.acceptance_length, 5.0);
  EXPECT_NEAR(summary.wall_s, 0.12, 1e-12);
  EXPECT_NEAR(summary.decode_tok_s, 10 / 0.1, 1e-9);
  EXPECT_NEAR(summary.ttft_ms.p50, 20, 1e-9);
  EXPECT_NEAR(summary.tpot_ms.p50, 10, 1e-9);
  EXPECT_NEAR(summary.step_ms.p50, 50, 1e-9);
}

// Decode time leaves out time in which only a prompt runs, and counts overlapping requests once.
TEST(RunRecorder, DecodeTimeIsAUnion) {
  RunRecorder recorder;
  const Clock::time_point t{};
  recorder.on_start(t);
  recorder.on_start(t);
  recorder.on_first_token(t + milliseconds(10));
  recorder.on_first_token(t + milliseconds(20));
  recorder.on_finish(t + milliseconds(30), finish_of(1, {2}, 0.01, 0.03), true);
  recorder.on_finish(t + milliseconds(40), finish_of(1, {2}, 0.02, 0.04), true);
  recorder.on_start(t + milliseconds(40));
  recorder.on_first_token(t + milliseconds(90));
  recorder.on_finish(t + milliseconds(100), finish_of(1, {2}, 0.05, 0.06), true);
  EXPECT_NEAR(recorder.summary().decode_s, 0.04, 1e-12);
  EXPECT_NEAR(recorder.summary().decode_tok_s, 6 / 0.04, 1e-6);
}

TEST(RunRecorder, FailuresCountOnceAndCancellationsDoNot) {
  RunRecorder recorder;
  const Clock::time_point t{};
  recorder.on_refused();
  recorder.on_start(t);
  recorder.on_start_failed();
  Finish failed;
  failed.reason = FinishReason::kError;
  recorder.on_start(t);
  recorder.on_finish(t, failed, false);
  Finish cancelled;
  cancelled.reason = FinishReason::kCancelled;
  recorder.on_start(t);
  recorder.on_finish(t, cancelled, false);
  EXPECT_EQ(recorder.summary().requests, 4);
  EXPECT_EQ(recorder.summary().errors, 3);
  EXPECT_EQ(recorder.summary().acceptance_length, 0);
  EXPECT_EQ(recorder.summary().decode_tok_s, 0);
}

TEST(Statistics, ARunWithoutRequestsHasNoFigures) {
  EXPECT_EQ(describe_summary({}), "0 requests");
}

}  // namespace
}  // namespace volley::apps
