// Protects, on the CPU and on a GPU: the candidates of a row and the walk from left to right against an fp64 oracle,
// for each kind of scoring, at temperature 0 and above it with the sampling rule's noise and filters; the chance that a
// head gives; columns that are a part of the tokens; ties; rows of nothing; and that blocks do not meet.
#include "ops/selector/selector.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "ops/choice/choice_testing.h"
#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Case {
  int32_t vocab = 0, rank = 0, top_k = 0;
  std::vector<int32_t> counts;  // rows of each slot's segment
  float temperature = 0;
  Scoring scoring = Scoring::kProduct;
  bool part = false;              // the columns of the logits are every second token
  std::optional<bool> head = {};  // for the chance; true: it sees the token before, too
  int32_t filter_k = 0;           // the requests' top-k, top-p and min-p
  float top_p = 1, min_p = 0;
  bool filters() const { return filter_k > 0 || top_p < 1 || min_p > 0; }

  int32_t tokens() const { return part ? 2 * vocab : vocab; }
  TokenId token(int32_t column) const { return part ? 2 * column + 1 : column; }
  int64_t outputs() const { return int64_t{sizes_of(scoring).hidden} * rank; }
  int64_t inputs() const { return int64_t{sizes_of(scoring).inputs} * rank; }
  int64_t weight_width() const { return 3 + inputs(); }  // W begins at column 3
};

struct Inputs {
  explicit Inputs(const Case& c) {
    const int64_t rows = std::accumulate(c.counts.begin(), c.counts.end(), int64_t{0});
    logits = normal_values(rows * c.vocab, 1);
    hidden = normal_values(std::max<int64_t>(1, rows * c.outputs()), 2);
    for (const float value : normal_values(int64_t{c.tokens()} * c.rank, 3)) predecessor.push_back(to_bfloat16(value));
    successor = normal_values(int64_t{c.vocab} * c.rank, 4);
    const float scale = 1 / std::sqrt(static_cast<float>(c.inputs() + 1));
    for (const float value : normal_values(std::max<int64_t>(1, c.outputs() * c.weight_width()), 5)) {
      weight.push_back(to_bfloat16(value * scale));
    }
    confidence = normal_values(rows, 6);
    confidence_weight = normal_values(2 + c.rank, 7);
    for (float& value : confidence_weight) value /= std::sqrt(static_cast<float>(c.rank));
    for (int32_t v = 0; v < c.vocab; ++v) token_ids.push_back(c.token(v));
    for (size_t i = 0; i < c.counts.size(); ++i) last.push_back(static_cast<TokenId>(7 * i) % c.tokens());
  }
  std::vector<float> logits, hidden, successor, confidence, confidence_weight;
  std::vector<BFloat16> predecessor, weight;
  std::vector<TokenId> token_ids, last;  // last: of each slot
};

struct Chosen {
  std::vector<TokenId> tokens;
  std::vector<float> probability;
};

SlotSampling sampling_of(const Case& c, size_t slot) {
  SlotSampling sampling;
  sampling.params.temperature = c.temperature;
  sampling.params.top_k = c.filter_k;
  sampling.params.top_p = c.top_p;
  sampling.params.min_p = c.min_p;
  sampling.params.choice_index = static_cast<int>(slot % 3);
  sampling.seed = 0x1234567890abcdefull + slot;
  return sampling;
}

int32_t first_index(size_t slot) {
  return static_cast<int32_t>(11 + 5 * slot);
}

Chosen run(Device& device, const Case& c, const Inputs& in) {
  const auto rows = std::ssize(in.confidence), slots = std::ssize(c.counts);
  const auto state = *SamplerState::create(device, static_cast<int32_t>(slots), c.tokens());
  std::vector<ChoiceSegment> segments;
  std::vector<SlotRow> table(c.counts.size());
  for (size_t i = 0; i < c.counts.size(); ++i) {
    EXPECT_TRUE(state->start(static_cast<int32_t>(i), sampling_of(c, i), {}, {}).ok());
    table[i].last_token = in.last[i];
    const int32_t begin = std::accumulate(c.counts.begin(), c.counts.begin() + static_cast<int64_t>(i), 0);
    segments.push_back({static_cast<int32_t>(i), begin, c.counts[i], first_index(i)});
  }
  const DeviceTensor logits(device, in.logits), hidden(device, in.hidden), predecessor(device, in.predecessor),
      successor(device, in.successor), weight(device, in.weight), confidence(device, in.confidence),
      confidence_weight(device, in.confidence_weight), ids(device, in.token_ids), on_device(device, segments),
      slot_table(device, table), tokens(device, static_cast<size_t>(rows) * 4),
      probability(device, static_cast<size_t>(rows) * 4);
  SelectorTask task;
  task.logits = logits.view(DType::kF32, {rows, c.vocab});
  task.scoring = c.scoring;
  if (c.outputs() > 0) task.hidden = hidden.view(DType::kF32, {rows, c.outputs()});
  task.predecessor = predecessor.view(DType::kBF16, {c.tokens(), c.rank});
  task.successor = successor.view(DType::kF32, {c.vocab, c.rank});
  if (c.inputs() > 0) task.weight = {weight.view(DType::kBF16, {c.outputs(), c.weight_width()}), 3};
  if (c.part) task.token_ids = ids.view(DType::kI32, {c.vocab});
  if (c.head) task.confidence = confidence.view(DType::kF32, {rows});
  if (c.head.value_or(false)) task.confidence_weight = {confidence_weight.view(DType::kF32, {1, 2 + c.rank}), 2};
  task.top_k = c.top_k;
  task.segments = {static_cast<const ChoiceSegment*>(on_device.view(DType::kU8, {1}).data), segments.size()};
  task.slots = static_cast<const SlotRow*>(slot_table.view(DType::kU8, {1}).data);
  task.state = state.get();
  task.tokens = tokens.view(DType::kI32, {rows}).as<TokenId>();
  task.probability = probability.view(DType::kF32, {rows}).as<float>();
  Arena scratch(std::move(device.allocate(16 << 20)).value());
  select_tokens(device.stream(), task, scratch);
  return {tokens.read<TokenId>(), probability.read<float>()};
}

// The candidates of a row: a stable sort of everything.
std::vector<TokenId> best_of(const float* logits, const Case& c) {
  std::vector<TokenId> ids(static_cast<size_t>(c.vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  ids.resize(std::min(c.top_k, c.vocab));
  return ids;
}

double oracle_noise(const Case& c, size_t slot, int32_t row, int32_t column) {
  const SlotSampling sampling = sampling_of(c, slot);
  return oracle_gumbel(sampling.seed, first_index(slot) + row, static_cast<uint32_t>(sampling.params.choice_index),
                       c.token(column));
}

bool is_close(double a, double b) {
  return std::fabs(a - b) < 1e-4 * (1 + std::fabs(a));
}

// The column that logits alone would draw, and whether rounding could turn that.
std::pair<int32_t, bool> oracle_drawn(const Case& c, const float* logits, size_t slot, int32_t row) {
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t v = 0; v < c.vocab; ++v)
    order.emplace_back(logits[v] / c.temperature + oracle_noise(c, slot, row, v), v);
  std::partial_sort(order.begin(), order.begin() + 2, order.end(), std::greater<>());
  return {order[0].second, is_close(order[0].first, order[1].first)};
}

// The weights of the candidates that the filters keep, 0 for the others; `close` where rounding could turn that.
std::vector<double> oracle_weights(const Case& c, const std::vector<double>& scores, bool& close) {
  std::vector<double> weights = oracle_softmax(scores), before(scores.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const double lowest = scores[order[0]] + (c.min_p > 0 ? std::log(c.min_p) : -1e9);
  double sum = 0, seen = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const double score = scores[order[i]];
    if (c.min_p > 0 && is_close(score, lowest)) close = true;
    if ((c.filter_k > 0 && i >= static_cast<size_t>(c.filter_k)) || score < lowest) weights[order[i]] = 0;
    sum += weights[order[i]];
  }
  for (const size_t i : order) {
    if (c.top_p < 1 && std::fabs(seen - c.top_p * sum) < 1e-4) close = true;
    if (c.top_p < 1 && seen >= c.top_p * sum) weights[i] = 0;
    seen += weights[i];
  }
  for (double& weight : weights) weight /= seen;
  return weights;
}

double oracle_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The formulas of selector.h in fp64. s: the state, which changes.
std::vector<double> oracle_query(const Case& c, const Inputs& in, size_t row, const std::vector<double>& e,
                                 std::vector<double>& s) {
  std::vector<double> x = s, raw, query;
  if (c.scoring == Scoring::kGated) x.clear();
  x.insert(x.end(), e.begin(), e.end());
  for (int64_t i = 0; i < c.outputs(); ++i) {
    raw.push_back(in.hidden[row * c.outputs() + i]);
    for (int64_t j = 0; j < c.inputs(); ++j) raw.back() += x[j] * to_float(in.weight[i * c.weight_width() + 3 + j]);
  }
  for (size_t j = 0; j < e.size(); ++j) {
    if (c.scoring == Scoring::kVanilla) query.push_back(e[j]);
    if (c.scoring == Scoring::kProduct) query.push_back(e[j] * raw[j]);
    if (c.scoring == Scoring::kGated) query.push_back(oracle_sigmoid(raw[j]) * e[j]);
    if (c.scoring != Scoring::kRecurrent) continue;
    const double gate = oracle_sigmoid(raw[j]);
    s[j] = gate * s[j] + (1 - gate) * std::tanh(raw[c.rank + j]);
    query.push_back(std::tanh(raw[2 * c.rank + j]));
  }
  return query;
}

// Each choice against fp64, given the choices before it: those that rounding could turn are few, and are left out.
void check(Device& device, const Case& c) {
  const Inputs in(c);
  const Chosen got = run(device, c, in);
  int compared = 0, close = 0, outside = 0, left_out = 0;
  size_t row = 0;
  for (size_t slot = 0; slot < c.counts.size(); ++slot) {
    TokenId previous = in.last[slot];
    std::vector<double> state(static_cast<size_t>(c.rank));
    for (int32_t i = 0; i < c.counts[slot]; ++i, ++row) {
      std::vector<double> embedding;
      for (int32_t j = 0; j < c.rank; ++j) embedding.push_back(to_float(in.predecessor[previous * c.rank + j]));
      const std::vector<double> query = oracle_query(c, in, row, embedding, state);
      std::vector<int32_t> columns = best_of(&in.logits[row * c.vocab], c);
      bool near = false;
      if (c.temperature > 0 && !c.filters() && c.top_k < std::min(c.vocab, kMaxCandidates)) {
        const auto [drawn, could_turn] = oracle_drawn(c, &in.logits[row * c.vocab], slot, i);
        near = could_turn;
        if (std::find(columns.begin(), columns.end(), drawn) == columns.end()) columns.push_back(drawn), ++outside;
      }
      std::vector<double> scores, noisy;
      for (const int32_t column : columns) {
        double score = in.logits[row * c.vocab + column];
        for (int32_t j = 0; j < c.rank; ++j) score += query[j] * in.successor[column * c.rank + j];
        scores.push_back(c.temperature > 0 ? score / c.temperature : score);
        noisy.push_back(scores.back() + (c.temperature > 0 ? oracle_noise(c, slot, i, column) : 0));
      }
      const std::vector<double> weights = c.temperature > 0 ? oracle_weights(c, scores, near) : oracle_softmax(scores);
      for (size_t j = 0; j < noisy.size(); ++j) {
        if (weights[j] == 0) noisy[j] = kNothing, ++left_out;
      }
      const auto best = static_cast<size_t>(std::max_element(noisy.begin(), noisy.end()) - noisy.begin());
      std::vector<double> order = noisy;
      std::sort(order.rbegin(), order.rend());
      if (near || (order.size() > 1 && is_close(order[0], order[1]))) {
        ++close;
      } else {
        ++compared;
        double chance = weights[best];
        if (c.head) {
          double sum = in.confidence[row];
          for (int32_t j = 0; *c.head && j < c.rank; ++j) sum += embedding[j] * in.confidence_weight[2 + j];
          chance = oracle_sigmoid(sum);
        }
        ASSERT_EQ(got.tokens[row], c.token(columns[best])) << "slot " << slot << ", row " << i;
        ASSERT_NEAR(got.probability[row], chance, 1e-3) << "row " << i;
      }
      previous = got.tokens[row];
    }
  }
  EXPECT_GT(compared, 20 * close) << "too few are clear";
  if (c.temperature > 0 && c.vocab >= 1000) {
    EXPECT_EQ(c.filters() ? left_out > 0 : outside > 0, c.top_k < 32);
  }
}

DEVICE_TEST(Selector, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const float temperature : {0.0f, 0.7f, 1.3f}) {
    check(device, {.vocab = 97, .rank = 8, .top_k = 16, .counts = {7, 0, 3, 15}, .temperature = temperature});
    check(device, {.vocab = 5003, .rank = 256, .top_k = 16, .counts = {15, 7, 1}, .temperature = temperature});
    check(device, {.vocab = 40000, .rank = 33, .top_k = 32, .counts = {4, 7}, .temperature = temperature});
    check(device, {.vocab = 9, .rank = 1, .top_k = 16, .counts = {5, 16}, .temperature = temperature});
    check(device, {.vocab = 64, .rank = 1024, .top_k = 1, .counts = {21}, .temperature = temperature});
  }
}

DEVICE_TEST(Selector, EveryScoringMatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const Scoring scoring : {Scoring::kVanilla, Scoring::kGated, Scoring::kRecurrent}) {
    for (const float temperature : {0.0f, 0.9f}) {
      check(device, {.vocab = 97,
                     .rank = 8,
                     .top_k = 16,
                     .counts = {7, 0, 3, 15, 1},
                     .temperature = temperature,
                     .scoring = scoring,
                     .part = true,
                     .head = true});
      check(device, {.vocab = 5003,
                     .rank = 256,
                     .top_k = 16,
                     .counts = {8, 7},
                     .temperature = temperature,
                     .scoring = scoring,
                     .head = false});
      check(device,
            {.vocab = 64, .rank = 1, .top_k = 32, .counts = {5, 16}, .temperature = temperature, .scoring = scoring});
    }
    check(device, {.vocab = 50, .rank = 1024, .top_k = 4, .counts = {3}, .scoring = scoring, .head = true});
  }
}

DEVICE_TEST(Selector, RequestsFiltersHoldForCandidates) {
  DEVICE_UNDER_TEST;
  for (const Scoring scoring : {Scoring::kProduct, Scoring::kVanilla}) {
    Case c = {.vocab = 5003, .rank = 3, .top_k = 16, .counts = {15, 7, 1}, .temperature = 0.8f, .scoring = scoring};
    c.top_p = 0.9f;
    check(device, c);
    c.filter_k = 5;
    check(device, c);
    c.part = true;
    c.top_p = 1;
    check(device, c);
    c.filter_k = 0;
    c.min_p = 0.1f;
    check(device, c);
  }
}

// Among equal logits the lowest ids are candidates, and among equal scores the first candidate is chosen.
DEVICE_TEST(Selector, TiesGoToTheLowerIndex) {
  DEVICE_UNDER_TEST;
  const Case c = {.vocab = 2000, .rank = 4, .top_k = 3, .counts = {1, 1, 1}};
  Inputs in(c);
  std::fill(in.logits.begin(), in.logits.end(), 0.0f);
  std::fill(in.successor.begin(), in.successor.end(), 0.0f);
  in.logits[2000 + 1500] = in.logits[2000 + 700] = 2.0f;  // slot 1
  for (const int32_t token : {5, 517, 1029, 1541, 21}) in.logits[4000 + token] = 1.0f;
  for (int32_t j = 0; j < 4; ++j) {  // slot 2: its third candidate's score is the highest
    in.predecessor[in.last[2] * 4 + j] = to_bfloat16(1.0f);
    in.hidden[8 + j] = 1.0f;
    in.successor[517 * 4 + j] = in.successor[1029 * 4 + j] = 1.0f;  // 1029 is no candidate
  }
  EXPECT_EQ(run(device, c, in).tokens, (std::vector<TokenId>{0, 700, 517}));
}

// More of a row's best than any thread of a GPU holds, all in the tokens of one.
DEVICE_TEST(Selector, FindsCandidatesThatLieTogether) {
  DEVICE_UNDER_TEST;
  Case c = {.vocab = 512 * 40, .rank = 2, .top_k = 32, .counts = {1}};
  for (const int32_t wanted : {0, 3, 4, 11, 31}) {
    Inputs in(c);
    for (int32_t i = 0; i < 40; ++i) in.logits[512 * i + 77] = 100.0f + static_cast<float>(i * 7 % 40);
    std::fill(in.successor.begin(), in.successor.end(), 0.0f);
    const TokenId token = best_of(in.logits.data(), c)[static_cast<size_t>(wanted)];
    for (int32_t j = 0; j < 2; ++j) {
      in.predecessor[j] = to_bfloat16(1.0f);
      in.hidden[j] = 1.0f;
      in.successor[token * 2 + j] = 1000.0f;
    }
    EXPECT_EQ(run(device, c, in).tokens[0], token) << wanted;
  }
}

DEVICE_TEST(Selector, WhatIsNoNumberIsNotChosen) {
  DEVICE_UNDER_TEST;
  const Case c = {.vocab = 300, .rank = 2, .top_k = 4, .counts = {2, 1}};
  Inputs in(c);
  std::fill_n(in.logits.begin(), 300, std::nanf(""));
  std::fill_n(in.logits.begin() + 300, 300, kNothing);
  in.logits[300 + 42] = 1.0f;
  in.hidden[4] = std::nanf("");  // in the last row no score is a number
  const Chosen got = run(device, c, in);
  EXPECT_EQ(got.tokens[0], 0);
  EXPECT_EQ(got.probability[0], 0);
  EXPECT_EQ(got.tokens[1], 42);
  EXPECT_NEAR(got.probability[1], 1, 1e-6);
  EXPECT_EQ(got.tokens[2], best_of(&in.logits[600], c)[0]);
  EXPECT_EQ(got.probability[2], 0);
}

}  // namespace
}  // namespace volley::ops
