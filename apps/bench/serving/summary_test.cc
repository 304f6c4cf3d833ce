// From answers to figures: what counts as a token, a step, an error.
#include "apps/bench/serving/summary.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

AnswerRecord answer(size_t sample, const std::string& text, int64_t tokens) {
  AnswerRecord record;
  record.sample = sample;
  record.text = text;
  record.ttft_s = 0.1;
  record.last_s = 0.3;
  record.e2e_s = 0.4;
  record.completion_tokens = tokens;
  return record;
}

TEST(Summary, FiguresOfWholeAnswers) {
  Dataset dataset;
  dataset.samples.resize(3);
  dataset.samples[0].expected = "7";
  dataset.samples[1].expected = "8";
  LoadResult result;
  result.wall_s = 2;
  result.records = {answer(0, "#### 7", 11), answer(1, "#### 7", 21), answer(2, "x", 1), answer(0, "", 50)};
  result.records[1].gaps_s = {0.05f, 0.15f};
  result.records[3].error = "It broke.";
  const ServingSummary s = summarize(result, dataset);
  EXPECT_EQ(s.requests, 4);
  EXPECT_EQ(s.errors, 1);
  EXPECT_EQ(s.error_texts, std::vector<std::string>{"It broke."});
  EXPECT_EQ(s.completion_tokens, 33);
  EXPECT_DOUBLE_EQ(s.output_tok_s, 16.5);
  EXPECT_DOUBLE_EQ(s.requests_s, 1.5);
  EXPECT_EQ(s.judged, 2);
  EXPECT_EQ(s.right, 1);
  EXPECT_DOUBLE_EQ(s.ttft_ms.p50, 100);
  EXPECT_NEAR(s.tpot_ms.mean, (200.0 / 10 + 200.0 / 20) / 2, 1e-9);
  EXPECT_NEAR(s.itl_ms.mean, 100, 1e-4);
  EXPECT_FALSE(s.acceptance_length) << "the endpoint said nothing";
  EXPECT_FALSE(s.drafted_tokens);
}

TEST(Summary, AcceptanceLengthFromStepsOrFromAcceptedTokens) {
  Dataset dataset;
  dataset.samples.resize(1);
  LoadResult result;
  result.wall_s = 1;
  result.records = {answer(0, "x", 13)};  // the first token, then 12 in 3 steps: 9 accepted, 3 bonus
  result.records[0].accepted_tokens = 9;
  result.records[0].rejected_tokens = 5;
  ServingSummary s = summarize(result, dataset);
  EXPECT_DOUBLE_EQ(s.acceptance_length.value(), 4);
  EXPECT_FALSE(s.acceptance_exact);
  EXPECT_EQ(s.drafted_tokens, 14);
  result.records[0].verify_steps = 4;
  s = summarize(result, dataset);
  EXPECT_DOUBLE_EQ(s.acceptance_length.value(), 3);
  EXPECT_TRUE(s.acceptance_exact);
}

TEST(Summary, Percentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Distribution d = distribution(values);
  EXPECT_DOUBLE_EQ(d.mean, 50);
  EXPECT_DOUBLE_EQ(d.p50, 50);
  EXPECT_DOUBLE_EQ(d.p90, 90);
  EXPECT_DOUBLE_EQ(d.p99, 99);
  EXPECT_DOUBLE_EQ(distribution({}).p99, 0);
}

TEST(Summary, TextsAreComparedWhereBothAnswered) {
  LoadResult a, b;
  a.records = {answer(0, "x", 1), answer(1, "y", 1), answer(2, "z", 1)};
  b.records = {answer(2, "z", 1), answer(1, "other", 1), answer(0, "x", 1)};
  b.records[2].error = "It broke.";
  const SameText same = compare_texts(a, b);
  EXPECT_EQ(same.compared, 2);
  EXPECT_EQ(same.same, 1);
}

}  // namespace
}  // namespace volley::apps
