#include "engine/run/verify_control.h"

#include <gtest/gtest.h>

#include <cmath>

namespace volley::engine {
namespace {

using Kind = VerifyPolicy::Kind;

// A device on which a row costs next to nothing: drafting pays wherever anything is accepted.
decode::CostModel measure_cheap_rows() {
  std::vector<decode::CostSample> samples;
  for (const int32_t requests : {1, 2, 4}) {
    for (const int32_t draft : {0, 1, 3}) {
      for (const int32_t rows : {requests, requests * (draft + 1)}) {
        const decode::RoundShape shape = {.requests = requests, .draft = draft, .verify_rows = rows};
        samples.push_back({shape, {draft > 0 ? 1e-4 : 0, 1e-2 + 1e-6 * rows}});
      }
    }
  }
  return decode::CostModel(std::move(samples), {});
}

const decode::CostModel& cheap_rows() {
  static const decode::CostModel costs = measure_cheap_rows();
  return costs;
}

VerifyConfig config_of(VerifyPolicy policy) {
  VerifyConfig config;
  config.policy = policy;
  config.max_draft = 3;
  config.draft_lengths = {{1, 3}};
  config.most_shared_rows = 100;
  config.max_rows = 64;
  if (policy.kind == Kind::kAuto) config.costs = &cheap_rows();
  return config;
}

sched::DecodingOutlook two_requests() {
  sched::DecodingOutlook outlook;
  outlook.requests = {{.id = 1, .most_draft = 3}, {.id = 2, .most_draft = 3}};
  outlook.positions = 50;
  return outlook;
}

// Plans a step as the scheduler and the worker would.
struct Planned {
  sched::StepPlan plan;
  std::vector<decode::RoundSegment> segments;
};
Planned plan_of(int32_t draft, int32_t rows) {
  Planned planned;
  planned.segments.resize(2);
  for (decode::RoundSegment& segment : planned.segments) {
    segment.draft = draft;
    segment.chooses = true;
  }
  planned.plan.rows = planned.plan.decode_rows = rows;
  planned.plan.shared = rows < 2 * (draft + 1);
  return planned;
}

decode::RoundResult outcome(int32_t verified, int32_t accepted, int32_t drafted) {
  decode::RoundResult result;
  result.tokens.assign(accepted + 1, 7);
  result.drafted = verified;
  result.accepted = accepted;
  result.confidence.assign(drafted, 0.9f);
  return result;
}

TEST(VerifyControl, WithoutADrafterNothingIsDrafted) {
  VerifyControl control({});
  const VerifyStep step = control.next(two_requests());
  EXPECT_EQ(step.limit.draft, 0);
  EXPECT_EQ(step.limit.most_shared_rows, 0);
}

// Only automatic drafts give way, and only to prompts. Where plain decoding exceeds its time, they also give way to
// prompts that wait.
TEST(VerifyControl, DraftsKeepToTheirPartBesidePrompts) {
  sched::DecodingOutlook outlook = two_requests();
  VerifyControl automatic(config_of({Kind::kAuto, 0}));
  EXPECT_EQ(automatic.next(outlook, 10.05e-3).limit.draft, 3);
  outlook.prompt_rows = 8;
  EXPECT_EQ(automatic.next(outlook, 10.05e-3).limit.draft, 0) << "plain takes 10 ms, drafting 0.1 more";
  EXPECT_EQ(automatic.next(outlook, 1e-3).limit.draft, 3);
  outlook.prompts_wait = true;
  EXPECT_EQ(automatic.next(outlook, 1e-3).limit.draft, 0);
  EXPECT_EQ(automatic.next(outlook, 1).limit.draft, 3);
  VerifyControl full(config_of({Kind::kFull, 0}));
  EXPECT_EQ(full.next(outlook, 1e-3).limit.draft, 3);
}

// The bound is of what drafts really take, where decoding beside prompts takes a fifth more than was measured.
TEST(VerifyControl, DraftsAreBoundedByWhatTheyReallyTake) {
  sched::DecodingOutlook outlook = two_requests();
  outlook.prompt_rows = 8;
  outlook.prompts_wait = true;
  decode::CostModel costs = cheap_rows();
  VerifyConfig config = config_of({Kind::kAuto, 0});
  config.costs = &costs;
  VerifyControl control(config);
  EXPECT_EQ(control.next(outlook, 10.5e-3).limit.draft, 3);
  costs.expect_steps(1e-3, true);
  const decode::RoundShape plain = {.requests = 2, .verify_rows = 2, .other_rows = 1, .other_positions = 1};
  for (int i = 0; i < 200; ++i) costs.observe(plain, {0, 12e-3});
  EXPECT_NEAR(costs.decoding_factor(), 1.2, 0.05);
  EXPECT_EQ(control.next(outlook, 10.5e-3).limit.draft, 0);
  EXPECT_NEAR(control.plain_s(), 12e-3, 0.5e-3);
}

TEST(VerifyControl, FixedPoliciesDraftThatMuch) {
  VerifyControl full(config_of({Kind::kFull, 0}));
  EXPECT_EQ(full.next(two_requests()).limit.draft, 3);
  EXPECT_EQ(full.next({}).limit.draft, 3) << "for a request that comes back from the queue";
  full.set({Kind::kFixed, 2});
  VerifyStep step = full.next(two_requests());
  EXPECT_EQ(step.limit.draft, 2);
  EXPECT_EQ(step.limit.rows, sched::VerifyLimit::kNoBound);
  EXPECT_EQ(step.limit.most_shared_rows, 0) << "there is nothing to share rows out by";
  const Planned planned = plan_of(2, 6);
  EXPECT_EQ(full.budget(planned.plan, planned.segments, step).rows, decode::VerifyBudget::kAll);
  EXPECT_EQ(step.shape.draft, 2);
  EXPECT_EQ(step.shape.verify_rows, 6);
  EXPECT_DEATH(full.set({Kind::kAuto, 0}), "policy_");
}

TEST(VerifyControl, CountsWhatCameOfAStep) {
  VerifyControl control(config_of({Kind::kFull, 0}));
  VerifyStep step = control.next(two_requests());
  Planned planned = plan_of(3, 8);
  planned.segments[0].simulate = decode::SimulatedAcceptance{0.5f, 0.5f};
  control.budget(planned.plan, planned.segments, step);
  const std::vector<decode::RoundResult> results = {outcome(3, 1, 3), outcome(2, 2, 3)};
  control.observe(step, {0.1, 0.2}, std::vector<RequestId>{1, 2}, results);
  // The second request has ended meanwhile.
  control.observe(step, {0.1, 0.2}, std::vector<RequestId>{1, 0}, results);
  const EngineStats::Verify stats = control.stats();
  EXPECT_EQ(stats.steps, 2);
  EXPECT_EQ(stats.plain, 0);
  EXPECT_EQ(stats.rows, 16);
  EXPECT_EQ(stats.draft_lengths, (std::vector<int64_t>{0, 0, 0, 2}));
  EXPECT_EQ(stats.verified_at, (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(stats.survived_at, (std::vector<int64_t>{3, 1, 0}));
  EXPECT_DOUBLE_EQ(stats.expected_tokens, 2 * (1 + 0.5 + 0.25 + 0.125));
  EXPECT_EQ(in_words(control.news()), "3 drafted tokens a request, 8 rows for 2 requests, as asked for");
}

// A row costs 1 us, drafting 100 us, the rest 10 ms.
TEST(VerifyControl, PredictsWhereThereIsACostModel) {
  VerifyControl control(config_of({}));
  VerifyStep step = control.next(two_requests());
  EXPECT_NEAR(control.plain_s(), 10e-3 + 2e-6, 1e-9);
  EXPECT_EQ(step.limit.draft, 3);
  EXPECT_NEAR(step.decoding_s, 10.1e-3 + 8e-6, 1e-9);
  Planned planned = plan_of(1, 4);
  const std::vector<TokenId> prompt(6);
  decode::RoundSegment chunk;
  chunk.start = 10;
  chunk.known = prompt;
  planned.segments.push_back(chunk);
  planned.plan.rows += 6;
  control.budget(planned.plan, planned.segments, step);
  EXPECT_NEAR(cheap_rows().decoding(step.shape), 10.1e-3 + 4e-6, 1e-9) << "what was planned, without the prompt";
  EXPECT_EQ(step.shape.other_rows, 6);
  EXPECT_EQ(step.shape.other_positions, 11 + 12 + 13 + 14 + 15 + 16);
  control.next({});
  EXPECT_EQ(control.plain_s(), 0);
  control.set({Kind::kFull, 0});
  sched::DecodingOutlook mixed = two_requests();
  mixed.requests[1].most_draft = 0;
  EXPECT_NEAR(control.next(mixed).decoding_s, 10.1e-3 + 5e-6, 1e-9) << "one drafts";
  mixed.prompt_rows = 61;
  EXPECT_NEAR(control.next(mixed).decoding_s, 10.1e-3 + 3e-6, 1e-9) << "there is room for one drafted token";
  mixed.requests[0].most_draft = 0;
  EXPECT_NEAR(control.next(mixed).decoding_s, 10e-3 + 2e-6, 1e-9);
  VerifyControl full(config_of({Kind::kFull, 0}));
  EXPECT_EQ(full.next(two_requests()).decoding_s, 0);
}

TEST(VerifyControl, ThePolicyDecidesAndLearns) {
  VerifyControl control(config_of({}));
  EXPECT_FALSE(control.next({}).decision.has_value()) << "nobody decodes";
  int64_t drafted = 0;
  double seconds = 0;
  for (int round = 0; round < 100; ++round) {
    VerifyStep step = control.next(two_requests());
    ASSERT_TRUE(step.decision.has_value());
    EXPECT_EQ(step.limit.draft, step.decision->draft);
    EXPECT_EQ(step.limit.rows, step.decision->verify_rows);
    EXPECT_EQ(step.limit.most_shared_rows, 100);
    const Planned planned = plan_of(step.limit.draft, std::min(step.limit.rows, 2 * (step.limit.draft + 1)));
    const decode::VerifyBudget budget = control.budget(planned.plan, planned.segments, step);
    EXPECT_EQ(budget.rows == decode::VerifyBudget::kAll, !planned.plan.shared);
    EXPECT_EQ(budget.table != nullptr, planned.plan.shared);
    drafted += step.draft;
    const int32_t most = step.limit.draft;
    const decode::StepTimes times = {most > 0 ? 1e-4 : 0, 1e-2};
    seconds += times.draft + times.rest;
    control.observe(step, times, std::vector<RequestId>{1, 2},
                    std::vector<decode::RoundResult>{outcome(most, most, most), outcome(most, most, most)});
  }
  const EngineStats::Verify stats = control.stats();
  EXPECT_GT(drafted, 250) << "everything is accepted, and rows are cheap";
  EXPECT_EQ(stats.steps, 100);
  EXPECT_GT(stats.predicted_s, 0);
  EXPECT_NEAR(stats.measured_s, seconds, 1e-9);
  EXPECT_NEAR(stats.predicted_s / seconds, 1, 0.1);
}

// Requests may leave a step after it was planned. The others need no more rows than they have tokens.
TEST(VerifyControl, SharesOutNoMoreRowsThanThereAreTokens) {
  VerifyControl control(config_of({}));
  VerifyStep step = control.next(two_requests());
  const Planned planned = plan_of(3, 6);
  EXPECT_EQ(control.budget(planned.plan, planned.segments, step).rows, 6);
  const std::span one(planned.segments.data(), 1);
  EXPECT_EQ(control.budget(planned.plan, one, step).rows, decode::VerifyBudget::kAll);
  EXPECT_EQ(step.rows, 4);
  EXPECT_EQ(step.shape.requests, 1);
}

TEST(SimulatedAcceptance, FollowsItsPhases) {
  SimulatedAcceptance simulated{{{0, 0.9}, {10, 0.0}, {20, 1.0}}, 2.0};
  EXPECT_FLOAT_EQ(simulated_at(simulated, 0, 0).p, 0.9f);
  EXPECT_FLOAT_EQ(simulated_at(simulated, 9, 0).confidence, 18.0f / 19.0f) << "odds of nine, doubled";
  EXPECT_EQ(simulated_at(simulated, 10, 0).p, 0.0f);
  EXPECT_EQ(simulated_at(simulated, 19, 0).confidence, 0.0f);
  EXPECT_EQ(simulated_at(simulated, 1000, 0).p, 1.0f);
  EXPECT_EQ(simulated_at(simulated, 20, 0).confidence, 1.0f);
  EXPECT_EQ(simulated_at(simulated, 20, 1).p, 1.0f);
  simulated.phases[2].second = 0.5;
  EXPECT_EQ(simulated_at(simulated, 20, 0).p, 1.0f);
  EXPECT_EQ(simulated_at(simulated, 20, 1).p, 0.5f);
}

}  // namespace
}  // namespace volley::engine
