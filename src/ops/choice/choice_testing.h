// For the tests of the sampling rule: a slow and obvious version of it in double precision, and a way to call choose()
// on either device: the test files are built into two programs, and in one of them they run on a GPU.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "device/dry_run.h"
#include "ops/choice/choice.h"
#include "ops/device_for_test.h"

namespace volley::ops {

// The scratch memory that choices of so many rows take.
inline int64_t scratch_of_choices(Stream& stream, const SamplerState& state, int64_t rows, int64_t vocab) {
  return measure_scratch(stream, [&](Arena& arena) {
    const ChoiceSegment segment;
    ChoiceOutput out;
    out.tokens = static_cast<TokenId*>(no_memory());
    const ChoicePlan plan = plan_choices(stream, {rows, {&segment, 1}, &state, out}, vocab % 4 == 0, arena);
    choose(stream, plan, TensorView(no_memory(), DType::kF32, {rows, vocab}), arena);
  });
}

// Philox4x32-10 as the paper writes it.
inline std::array<uint32_t, 4> oracle_philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

inline double oracle_gumbel_of(uint32_t word) {
  const double complement = (static_cast<double>(~word) + 0.5) / 4294967296.0;
  return -std::log(-std::log1p(-complement));
}

inline double oracle_gumbel(uint64_t seed, int32_t index, uint32_t choice_index, int32_t token) {
  const auto words = oracle_philox({static_cast<uint32_t>(token / 4), static_cast<uint32_t>(index), choice_index, 0},
                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return oracle_gumbel_of(words[token % 4]);
}

struct OracleInput {
  std::vector<float> logits;
  SlotSampling sampling;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;  // committed and drafted ones alike
  std::vector<uint32_t> mask;   // empty: none
  int32_t index = 0;
};

struct OracleChoice {
  TokenId token = 0;
  double probability = 0.0;
  std::vector<double> distribution;  // after all filters
  // How far the nearest decision (a filter's threshold, the winner) was from going the other way. Exact ties, which the
  // rule decides by id, do not count.
  double margin = std::numeric_limits<double>::infinity();
};

inline std::vector<double> oracle_adjust(const OracleInput& in) {
  const SamplingParams& p = in.sampling.params;
  std::vector<double> l(in.logits.begin(), in.logits.end());
  for (size_t v = 0; v < l.size(); ++v) {
    const auto token = static_cast<TokenId>(v);
    const auto outputs = std::count(in.output.begin(), in.output.end(), token);
    if (outputs > 0 || std::count(in.prompt.begin(), in.prompt.end(), token) > 0) {
      l[v] = l[v] > 0 ? l[v] / p.repetition_penalty : l[v] * p.repetition_penalty;
    }
    l[v] -= static_cast<double>(p.frequency_penalty) * static_cast<double>(outputs);
    if (outputs > 0) l[v] -= p.presence_penalty;
  }
  for (const auto& [token, bias] : p.logit_bias) l[token] += bias;
  if (in.index - in.sampling.prompt_length < in.sampling.min_tokens) {
    for (const TokenId token : in.sampling.end_ids) l[token] = -std::numeric_limits<double>::infinity();
  }
  if (!in.mask.empty()) {
    for (size_t v = 0; v < l.size(); ++v) {
      const bool allowed = v / 32 < in.mask.size() && ((in.mask[v / 32] >> (v % 32)) & 1u) != 0;
      if (!allowed) l[v] = -std::numeric_limits<double>::infinity();
    }
  }
  return l;
}

inline std::vector<double> oracle_softmax(const std::vector<double>& z) {
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<double> p(z.size());
  double sum = 0.0;
  for (size_t v = 0; v < z.size(); ++v) sum += p[v] = std::exp(z[v] - max);
  for (double& x : p) x /= sum;
  return p;
}

// Drops tokens from `z` by setting them to -inf; a sorted list of (value, id) is all it needs.
inline void oracle_filter(const SamplingParams& params, std::vector<double>& z, double& margin) {
  const auto note = [&](double distance) {
    if (distance != 0.0) margin = std::min(margin, std::abs(distance));
  };
  std::vector<size_t> order(z.size());
  for (size_t v = 0; v < z.size(); ++v) order[v] = v;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return z[a] > z[b]; });
  size_t kept = 0;
  while (kept < order.size() && std::isfinite(z[order[kept]])) ++kept;
  if (params.min_p > 0) {
    const double threshold = z[order[0]] + std::log(static_cast<double>(params.min_p));
    size_t n = 0;
    for (size_t i = 0; i < kept; ++i) {
      note(z[order[i]] - threshold);
      if (z[order[i]] >= threshold) ++n;
    }
    kept = n;
  }
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept) {
    const size_t k = static_cast<size_t>(params.top_k);
    note(z[order[k - 1]] - z[order[k]]);
    kept = k;
  }
  if (params.top_p < 1.0f) {
    double total = 0.0;
    for (size_t i = 0; i < kept; ++i) total += std::exp(z[order[i]] - z[order[0]]);
    double sum = 0.0;
    size_t n = 0;
    while (n < kept && sum < params.top_p * total) {
      sum += std::exp(z[order[n++]] - z[order[0]]);
      note(sum / total - params.top_p);
    }
    kept = n;
  }
  for (size_t i = kept; i < order.size(); ++i) z[order[i]] = -std::numeric_limits<double>::infinity();
}

inline OracleChoice oracle_choose(const OracleInput& in) {
  const SamplingParams& p = in.sampling.params;
  OracleChoice out;
  std::vector<double> z = oracle_adjust(in);
  if (p.temperature > 0.0f) {
    for (double& x : z) x /= p.temperature;
    oracle_filter(p, z, out.margin);
  }
  out.distribution = oracle_softmax(z);
  double best = -std::numeric_limits<double>::infinity();
  double second = best;
  for (size_t v = 0; v < z.size(); ++v) {
    const auto token = static_cast<TokenId>(v);
    const double noise = p.temperature > 0.0f ? oracle_gumbel(in.sampling.seed, in.index, p.choice_index, token) : 0.0;
    const double score = z[v] + noise;
    if (score > best) {
      second = best;
      best = score;
      out.token = token;
    } else {
      second = std::max(second, score);
    }
  }
  if (best != second) out.margin = std::min(out.margin, best - second);
  out.probability = out.distribution[out.token];
  return out;
}

struct Choices {
  std::vector<TokenId> tokens;
  std::vector<float> probability;
  std::vector<PositionLogprobs> logprobs;
  std::vector<uint8_t> finite;
};

// Logits as linear() leaves them: rows that are not whole hold summaries, followed by NaN.
inline std::vector<float> summarised(std::vector<float> logits, int32_t vocab, const std::vector<uint8_t>& whole) {
  for (size_t row = 0; row < whole.size(); ++row) {
    if (whole[row] != 0) continue;
    float* const values = logits.data() + row * vocab;
    std::vector<GroupSummary> groups(summary_groups(vocab));
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto first = static_cast<int32_t>(g) * kSummaryGroup;
      GroupSummary& group = groups[g] = {-std::numeric_limits<float>::infinity(), first, 0, 0};
      const int32_t end = std::min(vocab, first + kSummaryGroup);
      for (int32_t v = first; v < end; ++v) {
        if (values[v] > group.highest) group.highest = values[v], group.output = v;
      }
      double weight = 0;
      for (int32_t v = first; v < end; ++v) weight += std::exp(double{values[v]} - group.highest);
      group.weight = static_cast<float>(weight);
      if (std::any_of(values + first, values + end, [](float v) { return std::isnan(v); })) {
        group = {std::nanf(""), vocab + 99, std::nanf(""), 0};
      }
    }
    std::fill_n(values, vocab, std::nanf(""));
    std::memcpy(values, groups.data(), groups.size() * sizeof(GroupSummary));
  }
  return logits;
}

#ifdef VOLLEY_OPS_TEST_CUDA
inline constexpr DeviceKind kTestedDevice = DeviceKind::kCuda;
#else
inline constexpr DeviceKind kTestedDevice = DeviceKind::kCpu;
#endif

inline std::unique_ptr<Device> tested_device(int threads) {
  return std::move(kTestedDevice == DeviceKind::kCuda ? make_cuda_device(0) : make_cpu_device(threads)).value();
}

// Skips its tests where there is no GPU to run them on.
class ChoiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if constexpr (kTestedDevice == DeviceKind::kCuda) {
      std::string why;
      if (cuda_device_for_test(why) == nullptr) GTEST_SKIP() << "needs a GPU: " << why;
    }
  }
};

// A device with a scratch arena of exactly the promised size. Takes segments with pointers to host memory. summarises:
// in two parts, with summaries of the rows that the plan does not want whole.
class Chooser {
 public:
  // threads: the CPU's.
  explicit Chooser(int threads) : Chooser(tested_device(threads), threads) {}
  Chooser(std::unique_ptr<Device> device, int threads) : threads_(threads), device_(std::move(device)) {}

  Device& device() { return *device_; }

  std::unique_ptr<SamplerState> state(int32_t slots, int32_t vocab) {
    return std::move(SamplerState::create(*device_, slots, vocab)).value();
  }

  Choices operator()(const std::vector<float>& logits, int32_t vocab, std::vector<ChoiceSegment> segments,
                     const SamplerState& state, bool summarises = false) {
    const int64_t rows = static_cast<int64_t>(logits.size()) / vocab;
    std::vector<Buffer> held;
    const auto place = [&](const auto* values, size_t count) {
      using T = std::remove_cvref_t<decltype(*values)>;
      held.push_back(std::move(device_->allocate(count * sizeof(T))).value());
      device_->upload(held.back().data(), values, count * sizeof(T));
      return static_cast<T*>(held.back().data());
    };
    for (ChoiceSegment& s : segments) {
      if (s.prefix != nullptr) s.prefix = place(s.prefix, static_cast<size_t>(std::max(0, s.rows - 1)));
      if (s.mask != nullptr) s.mask = place(s.mask, static_cast<size_t>(s.rows) * s.mask_words);
    }
    Choices c;
    c.tokens.assign(rows, -7);
    c.probability.assign(rows, -7.0f);
    c.finite.assign(rows, 7);
    std::vector<RowLogprobs> logprobs(rows);
    const ChoiceOutput out = {.tokens = place(c.tokens.data(), rows),
                              .probability = place(c.probability.data(), rows),
                              .logprobs = place(logprobs.data(), rows),
                              .finite = place(c.finite.data(), rows)};
    Arena arena(std::move(device_->allocate(scratch_of_choices(device_->stream(), state, rows, vocab))).value());
    const TensorView view(place(logits.data(), logits.size()), DType::kF32, {rows, vocab});
    const ChoiceSegment* on_device = place(segments.data(), segments.size());
    const auto run = [&](const ChoiceOutput& output) {
      if (!summarises) return choose(device_->stream(), view, {on_device, segments.size()}, state, output, arena);
      ArenaScope scope(arena);
      const ChoicePlan plan =
          plan_choices(device_->stream(), {rows, {on_device, segments.size()}, &state, output}, true, arena);
      std::vector<uint8_t> whole(rows, 1);
      if (plan.summaries.whole != nullptr) device_->download(whole.data(), plan.summaries.whole, whole.size());
      const std::vector<float> left = summarised(logits, vocab, whole);
      device_->upload(view.data, left.data(), left.size() * sizeof(float));
      choose(device_->stream(), plan, view, arena);
    };
    run(out);
    EXPECT_EQ(arena.mark(), 0u);
    const auto read = [&](auto& values, const auto* from) {
      device_->download(values.data(), from, values.size() * sizeof(*from));
    };
    read(c.tokens, out.tokens);
    read(c.probability, out.probability);
    read(c.finite, out.finite);
    read(logprobs, out.logprobs);
    for (const RowLogprobs& row : logprobs) c.logprobs.push_back(to_position_logprobs(row));

    // A request for less output may be served in a quicker way, but the results must be the same.
    std::vector<TokenId> tokens(rows, -7);
    const ChoiceOutput less = {.tokens = place(tokens.data(), rows)};
    run(less);
    read(tokens, less.tokens);
    EXPECT_EQ(tokens, c.tokens);
    return c;
  }

  // One row of a slot of its own; the last `drafted` outputs are passed as the block's prefix.
  Choices one(const OracleInput& in, size_t drafted = 0) {
    const auto vocab = static_cast<int32_t>(in.logits.size());
    const auto one_slot = state(1, vocab);
    const size_t committed = in.output.size() - drafted;
    EXPECT_TRUE(one_slot->start(0, in.sampling, in.prompt, std::span(in.output).first(committed)).ok());
    // The row comes after `drafted` rows of its block, whose own choices do not matter here.
    std::vector<float> logits;
    for (size_t i = 0; i <= drafted; ++i) logits.insert(logits.end(), in.logits.begin(), in.logits.end());
    std::vector<uint32_t> masks;
    for (size_t i = 0; i <= drafted; ++i) masks.insert(masks.end(), in.mask.begin(), in.mask.end());
    const ChoiceSegment segment = {.slot = 0,
                                   .row_begin = 0,
                                   .rows = static_cast<int32_t>(drafted) + 1,
                                   .first_index = in.index - static_cast<int32_t>(drafted),
                                   .prefix = in.output.data() + committed,
                                   .mask = in.mask.empty() ? nullptr : masks.data(),
                                   .mask_words = static_cast<int32_t>(in.mask.size())};
    Choices all = (*this)(logits, vocab, {segment}, *one_slot);
    return {{all.tokens.back()}, {all.probability.back()}, {all.logprobs.back()}, {all.finite.back()}};
  }

 private:
  int threads_;
  std::unique_ptr<Device> device_;
};

inline std::vector<float> random_logits(std::mt19937& rng, size_t n, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(rng);
  return logits;
}

inline SamplingParams filtering(float temperature, int32_t top_k = 0, float top_p = 1.0f, float min_p = 0.0f) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  return p;
}

template <typename T>
T pick(std::mt19937& rng, const std::vector<T>& from) {
  return from[std::uniform_int_distribution<size_t>(0, from.size() - 1)(rng)];
}

// Runs f once for each instruction set that this machine has, by letting the dispatch see that one and the lesser ones;
// the last is the fallback. Once where the GPU is tested.
template <typename F>
void for_each_target(F&& f) {
  if constexpr (kTestedDevice == DeviceKind::kCuda) return f("the GPU");
  const auto limit = [](int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  const int64_t supported = (hwy::SupportedTargets() | HWY_EMU128) & ~HWY_SCALAR;
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {  // the lowest bit is the best target
    limit(rest);
    f(hwy::TargetName(rest & -rest));
  }
  limit(0);  // 0 ends the limit
}

}  // namespace volley::ops
