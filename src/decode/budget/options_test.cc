// Protects the arithmetic under the policy: which options exist, and the gains that past blocks predict.
#include "decode/budget/options.h"

#include <gtest/gtest.h>

#include "decode/budget/replay.h"

namespace volley::decode {
namespace {

// Configures drafts of 1, 3 or 7 tokens, in passes of this many rows.
BudgetConfig of_rows(int32_t rows) {
  return {.max_draft = 7,
          .draft_lengths = {{1, 3, 7}},
          .row_buckets = {},
          .most_shared_rows = 128,
          .max_rows = rows,
          .fixed = {}};
}

Replay begun(std::span<const Replay::Request> requests, const Population& population,
             const std::vector<int64_t>& ages = {0}) {
  Replay replay;
  replay.begin(requests, population, ages);
  return replay;
}

TEST(OptionsTest, OfEqualOnesThatWithFewerDraftsThenWithFewerRows) {
  const CostModel costs({{{1, 0, 1}, {0, 1}}, {{1, 1, 1}, {1e-9, 1}}, {{64, 7, 1000}, {1e-9, 1}}},
                        {});  // rows cost nothing
  Population population(7);
  BlockHistory history;
  const auto best = [&](std::vector<float> chances) {
    population.add(chances, history);
    const std::vector<Replay::Request> requests(4, {&history, 7});
    Replay replay = begun(requests, population);
    const BudgetConfig config = of_rows(128);
    Options options(config);
    options.evaluate({4, 7, 0, 100}, costs, {&replay, 1});
    return std::pair(options.best().draft, options.best().rows);
  };
  EXPECT_EQ(best({0, 0, 0, 0, 0, 0, 0}), std::pair(0, 4));
  EXPECT_EQ(best({1, 0, 0, 0, 0, 0, 0}), std::pair(1, 8));
  EXPECT_EQ(best({1, 1, 0, 0, 0, 0, 0}), std::pair(3, 12));
  EXPECT_EQ(best({1, 1, 1, 1, 1, 1, 1}), std::pair(7, 32));
}

// Prompts have their share of a step with a target time. The remaining time limits drafts, never plain decoding.
TEST(OptionsTest, NoDraftTakesLongerThanItMay) {
  const CostModel costs({{{4, 0, 4}, {0, 1}}, {{4, 7, 32}, {0.1, 2}}}, {});
  Population population(7);
  BlockHistory history;
  population.add(std::vector<float>(7, 0.99f), history);
  const auto best = [&](double most_seconds) {
    const std::vector<Replay::Request> requests(4, {&history, 7});
    Replay replay = begun(requests, population);
    const BudgetConfig config = of_rows(128);
    Options options(config);
    RoundToChoose round = {4, 7, 16, 100};
    round.most_seconds = most_seconds;
    options.evaluate(round, costs, {&replay, 1});
    EXPECT_EQ(options.bounded(), most_seconds < 2);
    EXPECT_TRUE(options.best().draft == 0 || options.best().charged <= most_seconds) << most_seconds;
    return options.best();
  };
  const Option free = best(10);
  EXPECT_EQ(free.rows, 32);
  const Option bounded = best(1.5);
  EXPECT_GT(bounded.draft, 0);
  EXPECT_LT(bounded.rows, free.rows);
  EXPECT_EQ(best(0.5).draft, 0);
}

// The room is smaller than the step between the sizes that are considered.
TEST(OptionsTest, WhatThereIsRoomForIsOneOfTheSizes) {
  const CostModel costs({{{200, 0, 200}, {0, 1}}, {{200, 15, 3200}, {1, 10}}}, {});
  const std::vector<Replay::Request> requests(200, {nullptr, 15});
  const Population population(15);
  Replay replay = begun(requests, population);
  const BudgetConfig config = {.max_draft = 15,
                               .draft_lengths = {{15}},
                               .row_buckets = {},
                               .most_shared_rows = 210,
                               .max_rows = 4000,
                               .fixed = {}};
  Options options(config);
  options.evaluate({200, 15, 0, 100}, costs, {&replay, 1});
  ASSERT_EQ(options.lengths(), 2u);
  EXPECT_EQ(options.of_length(1).front().rows, 210);
}

// A pass of one row has no room for drafts, so their cost could never be measured.
TEST(OptionsTest, WhereNoDraftFitsOnlyPlainDecodingIsLookedAt) {
  const CostModel costs({{{1, 0, 1}, {0, 1}}}, {});
  const std::vector<Replay::Request> requests(1, {nullptr, 7});
  const Population population(7);
  Replay replay = begun(requests, population);
  const BudgetConfig config = of_rows(1);
  Options options(config);
  options.evaluate({1, 7, 0, 100}, costs, {&replay, 1});
  ASSERT_EQ(options.lengths(), 1u);
  EXPECT_EQ(options.best().draft, 0);
  EXPECT_EQ(options.best().rows, 1);
}

TEST(OptionsTest, ShapesAreThoseThatRun) {
  BudgetConfig config;
  config.max_draft = 15;
  config.draft_lengths = {{1, 3, 7, 15}};
  config.row_buckets = {8, 16, 32, 64};
  config.most_shared_rows = 64;
  const Options options(config);
  const RoundToChoose round = {.requests = 5, .most_draft = 14, .other_rows = 0, .kv_tokens = 100};
  const auto sizes = [&](RoundToChoose of, int32_t draft, int32_t rows) {
    const RoundShape shape = options.shape(of, 0, draft, rows);
    return std::pair(shape.draft, shape.verify_rows);
  };
  EXPECT_EQ(sizes(round, 2, 12), std::pair(3, 16));
  EXPECT_EQ(sizes(round, 14, 64), std::pair(15, 64));
  EXPECT_EQ(sizes(round, 14, 75), std::pair(15, 80)) << "too many to be shared out: whole blocks";
  EXPECT_EQ(sizes(round, 0, 5), std::pair(0, 5));
  RoundToChoose with_prompt = round;
  with_prompt.other_rows = 10;
  EXPECT_EQ(sizes(with_prompt, 2, 12), std::pair(3, 12)) << "such a round is not recorded";
}

TEST(ReplayTest, GivesPlacesToTheLikeliestTokens) {
  Population population(3);
  BlockHistory sure, unsure;
  population.add(std::vector<float>{0.9f, 0.9f, 0.9f}, sure);
  population.add(std::vector<float>{0.5f, 0.5f, 0.5f}, unsure);
  const std::vector<Replay::Request> requests = {{&sure, 3}, {&unsure, 2}};
  Replay replay = begun(requests, population);
  replay.extend(3);
  EXPECT_EQ(replay.places(), 5);
  const double survival[] = {0.9, 0.81, 0.729, 0.5, 0.25};
  double sum = 0;
  EXPECT_EQ(replay.accepted(0), 0);
  for (int32_t places = 1; places <= 5; ++places) {
    sum += survival[places - 1];
    EXPECT_NEAR(replay.accepted(places), sum, 1e-6) << places;
  }
}

TEST(ReplayTest, WhereARequestWasInFewerRoundsOthersBlocksStandIn) {
  Population population(1);
  BlockHistory once, others;
  const auto expected = [&](const BlockHistory* history) {
    const std::vector<Replay::Request> requests = {{history, 1}};
    Replay replay = begun(requests, population, {0, 0, 0, 0});
    replay.extend(1);
    return replay.accepted(1);
  };
  const double at_first = population.mean()[0];
  EXPECT_NEAR(expected(nullptr), at_first, 1e-6) << "there were none";
  population.add(std::vector<float>{0.25f}, once);
  EXPECT_NEAR(expected(&once), (2 * 0.25 + 2 * at_first) / 4, 1e-6) << "its own is the last of all, too";
  for (int32_t i = 0; i < 3; ++i) population.add(std::vector<float>{0.75f}, others);
  EXPECT_NEAR(expected(nullptr), (3 * 0.75 + 0.25) / 4, 1e-6);
  population.add(std::vector<float>{0.75f}, others);
  EXPECT_NEAR(expected(&once), (0.25 + 3 * 0.75) / 4, 1e-6);
  for (int32_t i = 0; i < 1000; ++i) population.add(std::vector<float>{0.5f}, others);
  EXPECT_NEAR(expected(nullptr), 0.5, 1e-6);
}

TEST(ReplayTest, OlderRoundsCountLess) {
  Population population(1);
  BlockHistory history;
  population.add(std::vector<float>{0.25f}, history);
  population.add(std::vector<float>{0.75f}, history);
  const std::vector<Replay::Request> requests = {{&history, 1}};
  const auto expected = [&](std::vector<int64_t> ages) {
    Replay replay = begun(requests, population, ages);
    replay.extend(1);
    return replay.accepted(1);
  };
  EXPECT_NEAR(expected({3}), 0.75, 1e-6);
  EXPECT_NEAR(expected({0, 8}), (0.75 + 0.5 * 0.25) / 1.5, 1e-6);
}

TEST(PopulationTest, BlocksGoOnFromTheirOwnLevel) {
  Population population(4);
  BlockHistory history;
  // Blocks whose later tokens are less certain show how others would continue.
  for (int32_t i = 0; i < 1000; ++i) population.add(std::vector<float>{0.8f, 0.8f, 0.7f, 0.6f}, history);
  population.end_round(true, 1000, 0);
  EXPECT_NEAR(population.mean()[3], 0.8 * 0.8 * 0.7 * 0.6, 1e-3);
  BlockHistory same, sure, unsure;
  population.add(std::vector<float>{0.8f, 0.8f}, same);
  EXPECT_NEAR(same.worth[2], 0.8 * 0.8 * 0.7, 1e-3);
  EXPECT_NEAR(same.worth[3], 0.8 * 0.8 * 0.7 * 0.6, 1e-3);
  population.add(std::vector<float>{0.95f, 0.95f}, sure);
  population.add(std::vector<float>{0.5f, 0.5f}, unsure);
  EXPECT_GT(sure.worth[2] / sure.worth[1], 0.75);
  EXPECT_LT(unsure.worth[2] / unsure.worth[1], 0.65);
}

TEST(PopulationTest, WhatFollowsAnEndIsWorthNothing) {
  Population population(2);
  BlockHistory history;
  for (int32_t i = 0; i < 2000; ++i) population.end_round(false, 10, 1);
  population.add(std::vector<float>{1, 1}, history);
  EXPECT_NEAR(history.worth[0], 0.9, 1e-3);
  EXPECT_NEAR(history.worth[1], 0.81, 1e-3);
}

}  // namespace
}  // namespace volley::decode
