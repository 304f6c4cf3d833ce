// Protects: experts and weights against an fp64 oracle, for every kind of rule; ties; that a row's choice depends on
// the row alone; that the grouping holds every entry once, in order; rows that are left out, and experts that are
// elsewhere; simulated routing. Built twice: for the CPU, and with VOLLEY_OPS_TEST_CUDA for a GPU.
#include "ops/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "ops/router/route_rows.h"
#include "ops/router/router_testing.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr double kClose = 1e-5;  // relative; of some dozen fp32 roundings and an exponential

RouterRule softmax_rule(int32_t experts, int32_t top_k, bool renormalise = true) {
  RouterRule rule;
  rule.experts = experts;
  rule.top_k = top_k;
  rule.renormalise = renormalise;
  return rule;
}

RouterRule sigmoid_rule(int32_t experts, int32_t top_k, int32_t groups, int32_t top_groups, float scaling) {
  RouterRule rule = softmax_rule(experts, top_k);
  rule.score = RouterScore::kSigmoid;
  rule.groups = groups;
  rule.top_groups = top_groups;
  rule.scaling = scaling;
  return rule;
}

// The rule of a rank that has the experts [first, first + count).
RouterRule part_of(RouterRule rule, int32_t first, int32_t count) {
  rule.own_first = first;
  rule.own_count = count;
  return rule;
}

// All entries of routed rows whose expert is here, once, by expert and ascending; and what says so.
void check_grouping(const RouterRule& rule, const Routed& r) {
  std::vector<int32_t> entries, touched, offsets = {0};
  for (int32_t e = 0; e < rule.own(); ++e) {
    for (size_t i = 0; i < r.experts.size(); ++i) {
      if (r.experts[i] == e) entries.push_back(static_cast<int32_t>(i));
    }
    if (static_cast<int32_t>(entries.size()) > offsets.back()) touched.push_back(e);
    offsets.push_back(static_cast<int32_t>(entries.size()));
  }
  ASSERT_EQ(r.entries, entries);
  ASSERT_EQ(r.offsets, offsets);
  ASSERT_EQ(r.touched, touched);
  ASSERT_EQ(r.total, static_cast<int64_t>(touched.size()));
}

// Scores of one row in fp64: what experts are chosen by, and what their weights are made of.
struct Scores {
  std::vector<double> choice, weight;
  double divisor = 1;  // divisor of weights, unless they are renormalised
};

Scores oracle_scores(const RouterRule& rule, const RouterInputs& in, int64_t row) {
  Scores s;
  double highest = -INFINITY;
  for (int32_t e = 0; e < rule.experts; ++e) {
    const double logit = in.logits[row * rule.experts + e] + (in.logit_bias.empty() ? 0.0 : in.logit_bias[e]);
    const double score = rule.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-logit)) : logit;
    s.weight.push_back(score);
    s.choice.push_back(score + (in.choice_bias.empty() ? 0.0 : in.choice_bias[e]));
    highest = std::max(highest, score);
  }
  if (rule.score == RouterScore::kSoftmax) {
    for (double& w : s.weight) w = std::exp(w - highest);
    s.divisor = std::accumulate(s.weight.begin(), s.weight.end(), 0.0);
  }
  return s;
}

// Puts the choice scores of groups that are not kept at -infinity.
void oracle_groups(const RouterRule& rule, Scores& s) {
  const int32_t size = rule.experts / rule.groups;
  std::vector<std::pair<double, int32_t>> sums;  // negative, so that sorting puts the highest first
  for (int32_t g = 0; g < rule.groups; ++g) {
    std::vector<double> group(s.choice.begin() + g * size, s.choice.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    sums.emplace_back(-group[0] - group[1], g);
  }
  std::sort(sums.begin(), sums.end());
  for (int32_t i = rule.top_groups; i < rule.groups; ++i) {
    std::fill_n(s.choice.begin() + sums[i].second * size, size, -INFINITY);
  }
}

// One row against the oracle. Experts whose scores are closer than rounding may stand in either order.
void check_row(const RouterRule& rule, const RouterInputs& in, int64_t row, const Routed& r) {
  Scores s = oracle_scores(rule, in, row);
  if (rule.groups > 1) oracle_groups(rule, s);
  std::vector<double> best = s.choice;
  std::sort(best.rbegin(), best.rend());
  const int32_t* experts = &r.experts[row * rule.top_k];
  ASSERT_EQ(static_cast<int32_t>(std::set<int32_t>(experts, experts + rule.top_k).size()), rule.top_k);
  double sum = 0;
  for (int32_t i = 0; i < rule.top_k; ++i) {
    ASSERT_TRUE(experts[i] >= 0 && experts[i] < rule.experts);
    ASSERT_NEAR(s.choice[experts[i]], best[i], 1e-6) << "row " << row << " slot " << i;
    sum += s.weight[experts[i]];
  }
  for (int32_t i = 0; i < rule.top_k; ++i) {
    const double factor = in.expert_scale.empty() ? 1.0 : in.expert_scale[experts[i]];
    const double want = s.weight[experts[i]] / (rule.renormalise ? sum : s.divisor) * rule.scaling * factor;
    ASSERT_NEAR(r.weights[row * rule.top_k + i], want, kClose * std::fabs(want)) << "row " << row << " slot " << i;
  }
}

const std::vector<RouterRule> kRules = {
    softmax_rule(128, 8),  // Qwen3-30B-A3B
    softmax_rule(512, 10),
    softmax_rule(60, 4, false),
    softmax_rule(32, 4),  // gpt-oss-20b
    softmax_rule(3, 3),
    softmax_rule(1, 1),
    softmax_rule(500, 16, false),
    sigmoid_rule(256, 8, 8, 4, 2.5f),  // DeepSeek-V3
    sigmoid_rule(384, 8, 1, 1, 2.827f),
    sigmoid_rule(24, 5, 3, 2, 1.0f),
};

RouterInputs random_inputs(const RouterRule& rule, int64_t rows, uint32_t seed) {
  RouterInputs in;
  in.logits = normal_values(rows * rule.experts, seed);
  in.logit_bias = normal_values(rule.experts, seed + 1);
  if (rule.score == RouterScore::kSigmoid) in.choice_bias = normal_values(rule.experts, seed + 2);
  if (rows % 2 == 0) in.expert_scale = normal_values(rule.experts, seed + 3);
  return in;
}

DEVICE_TEST(Router, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const RouterRule& rule : kRules) {
    for (int64_t rows : {1, 2, 33, 64, 65, 300}) {
      SCOPED_TRACE(testing::Message() << rule.top_k << " of " << rule.experts << ", " << rows << " rows");
      const RouterInputs in = random_inputs(rule, rows, 7);
      const Routed r = route_for_test(device, rule, rows, in);
      for (int64_t row = 0; row < rows; ++row) check_row(rule, in, row, r);
      check_grouping(rule, r);
    }
  }
}

// Product and choices in one call give the bits of linear() and route(), for few rows and for many; counters of what
// follows are zero afterwards.
DEVICE_TEST(Router, RowsGiveWhatProductAndChoicesGive) {
  DEVICE_UNDER_TEST;
  for (const auto& [rule, hidden] : {std::pair{kRules[0], 2048},
                                     {kRules[7], 1024},
                                     {kRules[1], 320},
                                     {kRules[0], 64},
                                     {kRules[2], 256},
                                     {kRules[3], 2880},
                                     {kRules[9], 512},
                                     {softmax_rule(256, 16, false), 192},
                                     {part_of(kRules[0], 64, 32), 2048},
                                     {part_of(kRules[7], 224, 32), 1024},
                                     {part_of(kRules[1], 0, 256), 320},
                                     {part_of(kRules[3], 16, 16), 2880},
                                     {softmax_rule(256, 8, true), 2048}}) {
    const std::vector<float> values = normal_values(int64_t{rule.experts} * hidden, 31);
    std::vector<BFloat16> weights(values.size());
    std::ranges::transform(values, weights.begin(), [](float v) { return to_bfloat16(0.1f * v); });
    const WeightRows part{weights.data(), DType::kBF16, rule.experts};
    const LinearWeight router = std::move(pack_linear(device, {&part, 1}, hidden, DType::kBF16)).value();
    for (int64_t rows : {1, 2, 7, 8, 9, 16, 17, 70}) {
      SCOPED_TRACE(testing::Message() << rule.top_k << " of " << rule.experts << ", " << rows << " rows of " << hidden);
      const std::vector<float> x = normal_values(rows * hidden, 32);
      std::vector<BFloat16> h(x.size());
      std::ranges::transform(x, h.begin(), to_bfloat16);
      const DeviceTensor from(device, h);
      const Input h_rows{from.view(DType::kBF16, {rows, hidden}), {}};
      RouterInputs in = random_inputs(rule, rows, 7);
      std::ranges::fill(in.logits, std::nanf(""));
      in.zeroed = 3000;
      for (int64_t r = 0; r < rows; ++r) in.row_slots.push_back(r % 5 == 3 ? 9 : 1);
      in.skipped_slot = 9;
      RouterWorld apart(device, rule, rows, in), whole(device, rule, rows, in);
      Arena none{Buffer()};
      linear(device.stream(), router, h_rows, apart.call().logits, {}, none);
      apart.run();
      route_rows(device.stream(), rule, router, h_rows, whole.call(), whole.routing(), none);
      const Routed want = apart.read();
      check_grouping(rule, want);
      ASSERT_EQ(whole.read(), want);
      ASSERT_EQ(whole.zeroed(), std::vector<int32_t>(3000, 0));
      ASSERT_EQ(apart.zeroed(), std::vector<int32_t>(3000, 0));
    }
  }
}

DEVICE_TEST(Router, GroupsManyRows) {
  DEVICE_UNDER_TEST;
  for (int64_t rows : {2048, 5000}) {
    const RouterInputs in = random_inputs(kRules[0], rows, 3);
    check_grouping(kRules[0], route_for_test(device, kRules[0], rows, in));
  }
}

DEVICE_TEST(Router, TiesGoToTheLowerExpert) {
  DEVICE_UNDER_TEST;
  RouterInputs in;
  in.logits.assign(128, 0.5f);
  in.logits[100] = 0.75f;
  in.logits[2] = -0.0f;
  in.logits[77] = 0.75f;
  const Routed r = route_for_test(device, softmax_rule(128, 8), 1, in);
  EXPECT_EQ(r.experts, (std::vector<int32_t>{77, 100, 0, 1, 3, 4, 5, 6}));

  in.logits.assign(24, 0.0f);
  in.logits[3] = -0.0f;
  const Routed groups = route_for_test(device, sigmoid_rule(24, 6, 6, 2, 1.0f), 1, in);
  EXPECT_EQ(groups.experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

DEVICE_TEST(Router, RowsAreIndependent) {
  DEVICE_UNDER_TEST;
  for (const RouterRule& rule : {kRules[0], kRules[1], kRules[7]}) {
    const RouterInputs in = random_inputs(rule, 300, 11);
    const Routed all = route_for_test(device, rule, 300, in);
    for (const auto& [begin, rows] : {std::pair{0, 1}, {17, 1}, {299, 1}, {5, 20}, {100, 64}, {100, 65}, {1, 299}}) {
      RouterInputs some = in;
      some.logits.assign(in.logits.begin() + begin * rule.experts, in.logits.begin() + (begin + rows) * rule.experts);
      const Routed r = route_for_test(device, rule, rows, some);
      const size_t count = rows * rule.top_k, at = begin * rule.top_k;
      ASSERT_EQ(std::memcmp(r.experts.data(), &all.experts[at], count * 4), 0) << begin << " " << rows;
      ASSERT_EQ(std::memcmp(r.weights.data(), &all.weights[at], count * 4), 0) << begin << " " << rows;
    }
  }
}

// A row of the skipped slot uses no expert, and changes nothing for the others.
DEVICE_TEST(Router, LeavesRowsOut) {
  DEVICE_UNDER_TEST;
  const RouterRule rule = kRules[0];
  for (int64_t rows : {5, 200}) {
    RouterInputs in = random_inputs(rule, rows, 5);
    const Routed all = route_for_test(device, rule, rows, in);
    for (int64_t r = 0; r < rows; ++r) in.row_slots.push_back(r % 3 == 1 ? 9 : static_cast<int32_t>(r));
    in.skipped_slot = 9;
    const Routed some = route_for_test(device, rule, rows, in);
    for (int64_t i = 0; i < rows * rule.top_k; ++i) {
      const bool skipped = in.row_slots[i / rule.top_k] == 9;
      ASSERT_EQ(some.experts[i], skipped ? -1 : all.experts[i]);
      ASSERT_EQ(some.weights[i], skipped ? 0 : all.weights[i]);
    }
    check_grouping(rule, some);
  }
}

// Ranks that divide the experts choose alike, and each keeps the entries of its own: with the weights of the whole, and
// simulated ones likewise.
DEVICE_TEST(Router, LeavesOutExpertsThatAreElsewhere) {
  DEVICE_UNDER_TEST;
  for (const auto& [rule, parts] :
       {std::pair{kRules[0], 8}, {kRules[1], 4}, {kRules[1], 1}, {kRules[2], 2}, {kRules[4], 3}, {kRules[7], 8}}) {
    for (const int64_t rows : {1, 2, 17, 64, 65, 300}) {
      for (const bool simulated : {false, true}) {
        SCOPED_TRACE(testing::Message() << rule.top_k << " of " << rule.experts << " in " << parts << " parts, " << rows
                                        << " rows" << (simulated ? ", simulated" : ""));
        RouterInputs in = random_inputs(rule, rows, 13);
        for (int64_t r = 0; r < rows; ++r) in.row_slots.push_back(r % 7 == 3 ? 9 : static_cast<int32_t>(r));
        if (simulated) in.positions.assign(rows, 5);
        in.skipped_slot = 9;
        const Routed all = route_for_test(device, rule, rows, in);
        std::vector<int> had(all.experts.size());
        int64_t touched = 0;
        for (int part = 0; part < parts; ++part) {
          const int32_t count = rule.experts / parts, first = part * count;
          const RouterRule own = part_of(rule, first, count);
          const Routed r = route_for_test(device, own, rows, in);
          for (size_t i = 0; i < all.experts.size(); ++i) {
            const bool here = all.experts[i] >= first && all.experts[i] < first + count;
            ASSERT_EQ(r.experts[i], here ? all.experts[i] - first : -1) << "entry " << i;
            ASSERT_EQ(r.weights[i], here ? all.weights[i] : 0.0f) << "entry " << i;
            had[i] += here ? 1 : 0;
          }
          check_grouping(own, r);
          touched += r.total;
        }
        for (size_t i = 0; i < had.size(); ++i) ASSERT_EQ(had[i], all.experts[i] >= 0 ? 1 : 0);
        ASSERT_EQ(touched, all.total);
      }
    }
  }
}

DEVICE_TEST(Router, NaNChoosesRealExpertsAndHarmsNoOtherRow) {
  DEVICE_UNDER_TEST;
  for (const RouterRule& rule : {kRules[0], kRules[7]}) {
    RouterInputs in = random_inputs(rule, 3, 5);
    const Routed clean = route_for_test(device, rule, 3, in);
    std::fill_n(in.logits.begin() + rule.experts, rule.experts, std::nanf(""));
    const Routed r = route_for_test(device, rule, 3, in);
    const std::set<int32_t> chosen(&r.experts[rule.top_k], &r.experts[2 * rule.top_k]);
    EXPECT_EQ(static_cast<int32_t>(chosen.size()), rule.top_k);
    EXPECT_GE(*chosen.begin(), 0);
    EXPECT_LT(*chosen.rbegin(), rule.experts);
    for (int32_t i = 0; i < rule.top_k; ++i) {
      EXPECT_TRUE(std::isnan(r.weights[rule.top_k + i]));
      EXPECT_EQ(r.experts[i], clean.experts[i]);
      EXPECT_EQ(r.weights[2 * rule.top_k + i], clean.weights[2 * rule.top_k + i]);
    }
    check_grouping(rule, r);
  }
}

// Different experts, each as often as chance has it, and others for another slot, position, layer or seed.
DEVICE_TEST(Router, SimulatedRoutingIsUniform) {
  DEVICE_UNDER_TEST;
  const RouterRule rule = softmax_rule(128, 8);
  const int64_t rows = 4000;
  RouterInputs in;
  for (int64_t r = 0; r < rows; ++r) {
    in.row_slots.push_back(static_cast<int32_t>(r / 100));
    in.positions.push_back(static_cast<int32_t>(r % 100));
  }
  const Routed r = route_for_test(device, rule, rows, in);
  check_grouping(rule, r);
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* e = &r.experts[row * 8];
    ASSERT_TRUE(std::adjacent_find(e, e + 8, std::greater_equal<>()) == e + 8) << "not ascending, or twice";
    ASSERT_EQ(r.weights[row * 8], 0.125f);
  }
  for (int32_t e = 0; e < 128; ++e) {  // 250 expected, with a deviation of 15
    const int32_t count = r.offsets[e + 1] - r.offsets[e];
    EXPECT_TRUE(count > 175 && count < 325) << e << ": " << count;
  }
  const auto first_row = [&](int32_t slot, int32_t position, uint32_t seed, uint32_t layer) {
    RouterInputs one;
    one.row_slots = {slot};
    one.positions = {position};
    one.seed = seed;
    one.layer = layer;
    return route_for_test(device, rule, 1, one).experts;
  };
  EXPECT_EQ(first_row(0, 0, 0, 0), std::vector<int32_t>(r.experts.begin(), r.experts.begin() + 8));
  const std::set<std::vector<int32_t>> different = {first_row(0, 0, 0, 0), first_row(1, 0, 0, 0), first_row(0, 1, 0, 0),
                                                    first_row(0, 0, 1, 0), first_row(0, 0, 0, 1)};
  EXPECT_EQ(different.size(), 5u);
  // All of them, when as many are chosen as there are.
  in.row_slots.resize(1);
  in.positions.resize(1);
  EXPECT_EQ(route_for_test(device, softmax_rule(5, 5), 1, in).experts, (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

DEVICE_TEST(Router, CountsTouchedExperts) {
  DEVICE_UNDER_TEST;
  RouterWorld world(device, kRules[0], 30, random_inputs(kRules[0], 30, 1));
  world.run();
  const Routed once = world.read();
  world.run();
  EXPECT_EQ(once.total, static_cast<int64_t>(once.touched.size()));
  EXPECT_EQ(world.read().total, 2 * once.total);
}

DEVICE_TEST(Router, NoRows) {
  DEVICE_UNDER_TEST;
  RouterInputs in;
  in.logits = {0};  // not read
  const Routed r = route_for_test(device, softmax_rule(4, 2), 0, in);
  EXPECT_EQ(r.offsets, (std::vector<int32_t>(5, 0)));
  EXPECT_TRUE(r.touched.empty());
}

// Replicas with rows that others have routed: each groups the entries of its experts, numbered among all or among its
// own, and together they group every entry once.
DEVICE_TEST(Router, GroupsWhatWasChosenElsewhere) {
  DEVICE_UNDER_TEST;
  const RouterRule rule = softmax_rule(13, 3);
  for (const int64_t rows : {40, 700}) {
    RouterInputs in;
    in.logits = normal_values(rows * rule.experts, 3);
    in.row_slots.assign(rows, 0);
    in.row_slots[5] = in.row_slots[39] = in.skipped_slot = 1;
    RouterWorld chosen(device, rule, rows, in);
    chosen.run();
    const Routed whole = chosen.read();
    for (const bool by_own_numbers : {false, true}) {
      std::vector<int> grouped(whole.experts.size());
      int64_t touched = 0;
      for (const auto& [first, count] : std::vector<std::pair<int32_t, int32_t>>{{0, 4}, {4, 4}, {8, 0}, {8, 5}}) {
        if (by_own_numbers && count == 0) continue;
        const ExpertRange own = {first, count, by_own_numbers ? first : 0};
        const RouterRule numbered = softmax_rule(by_own_numbers ? count : rule.experts, rule.top_k);
        RouterWorld part(device, numbered, rows, {});
        group_chosen(device.stream(), {chosen.routing().experts}, own, part.routing(), part.call().touched_total);
        const Routed got = part.read();
        for (size_t i = 0; i < whole.experts.size(); ++i) {
          const int32_t expert = whole.experts[i];
          ASSERT_EQ(got.experts[i], expert >= first && expert < first + count ? expert - own.zero : -1) << i;
        }
        check_grouping(numbered, got);
        for (const int32_t entry : got.entries) ++grouped[static_cast<size_t>(entry)];
        touched += got.total;
      }
      for (size_t i = 0; i < grouped.size(); ++i) EXPECT_EQ(grouped[i], whole.experts[i] < 0 ? 0 : 1) << i;
      EXPECT_EQ(touched, static_cast<int64_t>(whole.touched.size()));
    }
  }
  const RouterWorld none(device, rule, 0, {});
  group_chosen(device.stream(), {{nullptr, DType::kI32, {0, rule.top_k}}}, {0, 13}, none.routing());
  EXPECT_EQ(none.read().offsets, std::vector<int32_t>(14));
}

#ifdef VOLLEY_OPS_TEST_CUDA
// Rows in parts, of which only the device knows how many exist: the other places belong to no row.
DEVICE_TEST(Router, GroupsTheRowsOfAPartThatAreThere) {
  DEVICE_UNDER_TEST;
  const RouterRule rule = softmax_rule(13, 3);
  constexpr int32_t kParts = 4;
  const ExpertRange own = {3, 7, 3};
  for (const int64_t most : {6, 900}) {
    const int64_t rows = kParts * most;
    for (const std::vector<int32_t>& counts :
         std::vector<std::vector<int32_t>>{{0, 0, 0, 0}, {1, 0, 2, 5}, {6, 6, 6, 6}, {0, 3, 0, 1}, {6, 0, 0, 6}}) {
      std::minstd_rand random(7);
      std::vector<int32_t> experts(rows * rule.top_k), there(counts);
      if (most > 6) there = {static_cast<int32_t>(most), counts[1] * 100, counts[2], counts[3] * 150};
      for (size_t i = 0; i < experts.size(); i += 3) {  // different ones in a row; some rows are left out
        const auto first = static_cast<int32_t>(random() % 14);
        for (int32_t j = 0; j < 3; ++j) experts[i + j] = first == 13 ? -1 : (first + 4 * j) % 13;
      }
      const DeviceTensor chosen(device, experts), count(device, there);
      RouterWorld part(device, softmax_rule(own.count, rule.top_k), rows, {});
      ChosenRows in = {chosen.view(DType::kI32, {rows, rule.top_k})};
      in.counts = count.view(DType::kI32, {kParts}).as<int32_t>();
      in.parts = kParts;
      group_chosen(device.stream(), in, own, part.routing(), part.call().touched_total);
      const Routed got = part.read();
      std::vector<std::vector<int32_t>> entries(own.count);
      for (int32_t p = 0; p < kParts; ++p) {
        for (int64_t i = p * most * rule.top_k; i < (p * most + there[p]) * rule.top_k; ++i) {
          const int32_t number = experts[i] - own.first;
          const bool here = number >= 0 && number < own.count;
          ASSERT_EQ(got.experts[i], here ? number : -1) << i;
          if (here) entries[number].push_back(static_cast<int32_t>(i));
        }
      }
      std::vector<int32_t> want, offsets = {0}, touched;
      for (int32_t e = 0; e < own.count; ++e) {
        want.insert(want.end(), entries[e].begin(), entries[e].end());
        offsets.push_back(static_cast<int32_t>(want.size()));
        if (!entries[e].empty()) touched.push_back(e);
      }
      EXPECT_EQ(got.entries, want);
      EXPECT_EQ(got.offsets, offsets);
      EXPECT_EQ(got.touched, touched);
      EXPECT_EQ(got.total, static_cast<int64_t>(touched.size()));
    }
  }
}
#endif

TEST(RouterRule, EveryExpertHasOneOwner) {
  for (const int32_t experts : {8, 13, 128}) {
    for (int32_t replicas = 1; replicas <= 8; ++replicas) {
      for (int32_t r = 0; r < replicas; ++r) {
        for (int32_t e = experts * r / replicas; e < experts * (r + 1) / replicas; ++e) {
          EXPECT_EQ(expert_owner(e, experts, replicas), r) << e << " of " << experts;
        }
      }
    }
  }
}

#ifndef VOLLEY_OPS_TEST_CUDA
TEST(RouterRule, RefusesWhatCannotBeFollowed) {
  const auto code = [](const RouterRule& rule) { return check_router(rule).error().code; };
  EXPECT_EQ(code(softmax_rule(4, 5)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(softmax_rule(4, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(softmax_rule(513, 8)), ErrorCode::kUnimplemented);
  EXPECT_EQ(code(softmax_rule(128, 17)), ErrorCode::kUnimplemented);
  EXPECT_EQ(code(sigmoid_rule(100, 8, 3, 1, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(sigmoid_rule(64, 8, 64, 8, 1)), ErrorCode::kUnimplemented);
  EXPECT_EQ(code(sigmoid_rule(64, 9, 8, 1, 1)), ErrorCode::kInvalidArgument);
  RouterRule rule = softmax_rule(64, 8);
  rule.groups = 8;
  rule.top_groups = 4;
  EXPECT_EQ(code(rule), ErrorCode::kUnimplemented);
  for (const RouterRule& fine : kRules) EXPECT_TRUE(check_router(fine).ok());
}
#endif

}  // namespace
}  // namespace volley::ops
