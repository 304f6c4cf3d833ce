// Protects: ranks that divide a layer's experts, each with a consecutive range of them. For weights of every format,
// with and without biases, in one kernel and in several: each rank's part equals the fp64 oracle of its own experts;
// rows that use none of these stay exactly unchanged; a row's bits depend only on the row; and the parts add up to the
// result of one rank with all experts. Built twice: for the CPU, and with VOLLEY_OPS_TEST_CUDA for a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/sanitized.h"
#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear_testing.h"

namespace volley::ops {
namespace {

constexpr int32_t kExperts = 16, kTopK = 4;

struct Rank {
  int32_t first, count;
  bool has(int32_t expert) const { return expert >= first && expert < first + count; }
};
constexpr int kRanks = 3;
using Division = Rank[kRanks];
constexpr Division kDivisions[] = {{{0, 3}, {3, 8}, {11, 5}}, {{0, 10}, {10, 5}, {15, 1}}};

// Logits whose rows shun the experts of rank 0, 1, 2 and of none, by turns, or all those of `shunned`; and rows that
// are left out.
RouterInputs inputs_of(const Division& ranks, int64_t rows, const Rank* shunned = nullptr) {
  RouterInputs in = TestRouting::inputs(TestRouting::make_rule(kExperts, kTopK), rows, 0, 7);
  for (int64_t row = 0; row < rows; ++row) {
    const Rank* shuns = shunned != nullptr            ? shunned
                        : row % (kRanks + 1) < kRanks ? &ranks[row % (kRanks + 1)]
                                                      : nullptr;
    for (int32_t e = 0; e < kExperts; ++e) {
      if (shuns != nullptr && shuns->has(e)) in.logits[row * kExperts + e] -= 100;
    }
  }
  return in;
}
RouterRule rule_of(const Rank& rank) {
  RouterRule rule = TestRouting::make_rule(kExperts, kTopK);
  rule.own_first = rank.first;
  rule.own_count = rank.count;
  return rule;
}

// A layer of all experts, and each rank's part of it.
struct DividedLayer {
  const Division& ranks;
  Experts gate_up, down;
  std::vector<Experts> own_gate_up, own_down;
  bool biased;

  DividedLayer(Device& device, const Division& ranks, Experts gate_up, Experts down, bool biased)
      : ranks(ranks), gate_up(std::move(gate_up)), down(std::move(down)), biased(biased) {
    for (const Rank& rank : ranks) {
      own_gate_up.push_back(this->gate_up.part(device, rank.first, rank.count));
      own_down.push_back(this->down.part(device, rank.first, rank.count));
    }
  }
  Layer whole(DType d) const { return {gate_up, down, d, Chain::kApart, biased, false}; }
  Layer part(int rank, DType d, Chain chain) const {
    return {own_gate_up[rank], own_down[rank], d, chain, biased, false};
  }
  void be_portable(bool portable) {
    gate_up.packed.portable = down.packed.portable = portable;
    for (Experts& w : own_gate_up) w.packed.portable = portable;
    for (Experts& w : own_down) w.packed.portable = portable;
  }
};

bool same(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// A rank's contribution to an output, in fp64 from the first product's stored result, and its error bound.
struct RowSum {
  double value = 0, bound = 0;
};

// A rank's part against the whole's routing and the oracle.
void check_part(Device& device, const DividedLayer& layer, int number, DType d, const TestRouting& all,
                const LayerOutput& whole, const std::vector<float>& x, const LayerOutput& part) {
  const Rank& rank = layer.ranks[number];
  const int64_t hidden = layer.gate_up.k, inner = layer.down.k, entries = all.entries();
  const int64_t step = all.rows > 100 ? 37 : 1;  // step between entries compared with the oracle
  const BiasedEnd gate_up_biased(device, layer.gate_up), down_biased(device, layer.down);
  std::vector<RowSum> sums(all.rows * hidden);
  std::vector<bool> touches(all.rows);
  int64_t own = 0;
  for (int64_t entry = 0; entry < entries; ++entry) {
    const int32_t expert = all.routed.experts[entry];  // the whole layer's expert
    const float* own_d = &part.d[entry * hidden];
    if (!rank.has(expert)) {
      for (int64_t i = 0; i < hidden; ++i) ASSERT_TRUE(std::isnan(own_d[i])) << "written, though elsewhere: " << entry;
      continue;
    }
    ++own;
    touches[entry / kTopK] = true;
    const auto place = [&](const Routed& routed) {
      return std::find(routed.entries.begin(), routed.entries.end(), entry) - routed.entries.begin();
    };
    const int64_t grouped = place(part.routed);
    ASSERT_LT(grouped, std::ssize(part.routed.entries));
    const float* h = &part.inner[grouped * inner];
    ASSERT_TRUE(same(h, &whole.inner[place(whole.routed) * inner], inner)) << "entry " << entry;
    ASSERT_TRUE(same(own_d, &whole.d[entry * hidden], hidden)) << "entry " << entry;
    for (int64_t i = entry % step; i < inner; i += step) {
      const auto [want, bound] = expected(layer.gate_up, layer.biased ? &gate_up_biased : nullptr, layer.gate_up.dtype,
                                          expert, i, &x[entry / kTopK * hidden]);
      ASSERT_NEAR(h[i], want, bound) << "entry " << entry << " inner " << i;
    }
    const double weight = all.routed.weights[entry];
    for (int64_t i = entry / kTopK % step; i < hidden; i += step) {
      const auto [want, bound] = expected(layer.down, layer.biased ? &down_biased : nullptr, d, expert, i, h);
      RowSum& sum = sums[entry / kTopK * hidden + i];
      sum.value += weight * want;
      // The product and each addition round once.
      sum.bound += weight * (bound + (kTopK + 1) * kRound * (std::fabs(want) + bound));
    }
  }
  ASSERT_EQ(std::ssize(part.routed.entries), own);
  for (size_t i = own * inner; i < part.inner.size(); ++i) ASSERT_TRUE(std::isnan(part.inner[i])) << "written: " << i;
  for (int64_t row = 0; row < all.rows; ++row) {
    for (int64_t i = touches[row] ? row % step : 0; i < hidden; i += touches[row] ? step : 1) {
      const float y = part.y[row * hidden + i];
      if (!touches[row]) {
        ASSERT_EQ(y, 0) << "row " << row;
      }
      const RowSum& sum = sums[row * hidden + i];
      ASSERT_NEAR(y, sum.value, sum.bound) << "row " << row << " column " << i;
    }
  }
}

// Rows alone, and some among themselves, have the bits that they have among all.
void check_rows_alone(Device& device, const Layer& layer, const TestRouting& own, const std::vector<float>& x,
                      const std::vector<float>& y) {
  const int64_t rows = own.rows, hidden = layer.gate_up.k;
  const std::pair<int64_t, int64_t> batches[] = {{0, 1}, {rows / 2, 1}, {rows - 1, 1}, {rows / 3, (rows + 1) / 2}};
  for (const auto& [begin, count] : batches) {
    const std::vector<float> some = run_layer(device, layer, own, x, begin, count).y;
    ASSERT_TRUE(same(some.data(), &y[begin * hidden], std::ssize(some))) << count << " rows from " << begin;
  }
}

void check_division(Device& device, const DividedLayer& layer, int64_t rows, DType d) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << layer.gate_up.k << ", " << dtype_name(d)
                                  << (layer.biased ? ", biased" : "")
                                  << (layer.down.packed.portable ? ", portable" : "") << ", rank 0 has "
                                  << layer.ranks[0].count);
  const int64_t hidden = layer.gate_up.k;
  const RouterInputs in = inputs_of(layer.ranks, rows);
  const TestRouting all(device, TestRouting::make_rule(kExperts, kTopK), rows, in);
  const std::vector<float> x = rounded(normal_values(rows * hidden, 3), layer.gate_up.dtype);
  const LayerOutput whole = run_layer(device, layer.whole(d), all, x, 0, rows);
  std::vector<float> sums(rows * hidden);
  for (int number = 0; number < kRanks; ++number) {
    SCOPED_TRACE(testing::Message() << "rank " << number);
    const Rank& rank = layer.ranks[number];
    const TestRouting own(device, rule_of(rank), rows, in);
    std::vector<float> own_x = x;  // rows that touch none of the rank's hold NaN, which reaches nothing
    int64_t without = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t* chosen = &all.routed.experts[row * kTopK];
      if (std::any_of(chosen, chosen + kTopK, [&](int32_t e) { return rank.has(e); })) continue;
      std::fill_n(&own_x[row * hidden], hidden, std::nanf(""));
      ++without;
    }
    ASSERT_GE(without, number == 0 ? 1 : rows / (kRanks + 1));
    const LayerOutput part = run_layer(device, layer.part(number, d, Chain::kWhole), own, own_x, 0, rows);
    const LayerOutput apart = run_layer(device, layer.part(number, d, Chain::kApart), own, own_x, 0, rows);
    ASSERT_TRUE(same(part.y.data(), apart.y.data(), rows * hidden));
    ASSERT_NO_FATAL_FAILURE(check_part(device, layer, number, d, all, whole, x, part));
    ASSERT_NO_FATAL_FAILURE(check_rows_alone(device, layer.part(number, d, Chain::kWhole), own, own_x, part.y));
    for (int64_t i = 0; i < rows * hidden; ++i) sums[i] += part.y[i];
  }
  // All have the same addends. Products are the same; sums round as often as there are addends and ranks.
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < hidden; ++i) {
      double addends = 0;
      for (int64_t entry = row * kTopK; entry < (row + 1) * kTopK; ++entry) {
        if (all.routed.experts[entry] >= 0)
          addends += std::fabs(all.routed.weights[entry] * whole.d[entry * hidden + i]);
      }
      ASSERT_NEAR(sums[row * hidden + i], whole.y[row * hidden + i], 2 * (kTopK + kRanks) * kRound * addends)
          << "row " << row << " column " << i;
    }
  }
}

// A batch of which no row touches an expert of the rank: nothing is read, nothing is written.
void check_untouched(Device& device, const DividedLayer& layer, int64_t rows, DType d) {
  for (int number = 0; number < kRanks; ++number) {
    SCOPED_TRACE(testing::Message() << rows << " rows that all shun rank " << number);
    const Rank& rank = layer.ranks[number];
    const TestRouting own(device, rule_of(rank), rows, inputs_of(layer.ranks, rows, &rank));
    ASSERT_TRUE(own.routed.entries.empty() && own.routed.touched.empty());
    const std::vector<float> x(rows * layer.gate_up.k, std::nanf(""));
    for (Chain chain : {Chain::kApart, Chain::kWhole}) {
      const LayerOutput out = run_layer(device, layer.part(number, d, chain), own, x, 0, rows);
      for (float v : out.y) ASSERT_EQ(v, 0);
      for (float v : out.inner) ASSERT_TRUE(std::isnan(v));
      for (float v : out.d) ASSERT_TRUE(std::isnan(v));
    }
  }
}

// hidden and inner: as models have them, and odd ones, which the plain kernels of a GPU take.
void check_format(Device& device, const WeightFormat& format) {
  SCOPED_TRACE(format_name(format));
  const auto experts = [&](int64_t n, int64_t k, LinearLayout layout) {
    if (format.is_codes()) return Experts::coded(device, kExperts, n, k, format, layout);
    return Experts(device, kExperts, n, k, format.code, layout);
  };
  for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{136, 72}, {77, 37}}) {
    for (const Division& ranks : kDivisions) {
      for (const bool biased : {false, true}) {
        DividedLayer layer(device, ranks, experts(2 * inner, hidden, kGateUp), experts(hidden, inner, kPlain), biased);
        for (const bool portable : {false, true}) {
          if (portable && device.kind() != DeviceKind::kCuda) continue;
          layer.be_portable(portable);
          for (const int64_t rows : {1, 5, 40, 300}) {
            if (hidden < 100 && rows != 40) continue;
            if (kSanitized && rows > 40) continue;
            check_division(device, layer, rows, rows == 5 ? kBF16 : kF32);
          }
          check_untouched(device, layer, 1, kF32);
          check_untouched(device, layer, 40, layer.gate_up.dtype);
        }
      }
    }
  }
}

DEVICE_TEST(GroupedLinear, RanksOfPlainWeightsAddUpToTheWhole) {
  DEVICE_UNDER_TEST;
  for (DType dtype : {kBF16, kF32}) check_format(device, dtype);
}

DEVICE_TEST(GroupedLinear, RanksOfBytesAddUpToTheWhole) {
  DEVICE_UNDER_TEST;
  for (const WeightFormat& format : {kFp8Weights, WeightFormat(DType::kF8E4M3, 1, 64)}) check_format(device, format);
}

DEVICE_TEST(GroupedLinear, RanksOfHalfBytesAddUpToTheWhole) {
  DEVICE_UNDER_TEST;
  for (const WeightFormat& format :
       {kMxfp4Weights, kNvfp4Weights, kInt4Weights, WeightFormat(DType::kI4, 1, 128, true)}) {
    check_format(device, format);
  }
}

// The fp64 contribution of a rank to rows that use its experts, with the magnitude of its addends.
void combine_oracle(const TestRouting& all, int64_t row, const Experts& down, const std::vector<float>& inner,
                    int64_t column, Sum& sum) {
  for (int64_t s = 0; s < all.rule.top_k; ++s) {
    const int64_t entry = row * all.rule.top_k + s;
    const int32_t expert = all.routed.experts[entry];
    if (expert < 0) continue;
    const Sum d = oracle(down, expert, column, &inner[entry * down.k]);
    sum.value += all.routed.weights[entry] * d.value;
    sum.magnitude += std::fabs(all.routed.weights[entry]) * d.magnitude;
  }
}

// The second product and the combination against the oracle, where some experts of a row are elsewhere.
DEVICE_TEST(GroupedLinear, CombinesWhatIsHere) {
  DEVICE_UNDER_TEST;
  for (const auto& [experts, top_k, rows, n, k] :
       {std::tuple{16, 4, 40, 264, 128}, {8, 8, 3, 37, 33}, {512, 10, 20, 130, 64}}) {
    const Experts whole(device, experts, n, k, kBF16, kPlain);
    for (const auto& [first, count] : {std::pair{0, experts / 4}, {experts / 4, experts / 2}, {experts - 1, 1}}) {
      const Experts own = whole.part(device, first, count);
      TestRouting routing(device, experts, top_k, rows, 0, 3);
      routing.rule.own_first = first;
      routing.rule.own_count = count;
      RouterWorld world(device, routing.rule, rows, routing.all);
      world.run();
      routing.routed = world.read();
      const std::vector<int32_t>& entries = routing.routed.entries;
      const std::vector<float> x = rounded(normal_values(rows * top_k * k, 5), kBF16);  // grouped
      std::vector<float> inner(x.size(), std::nanf(""));                                // inner row of each entry
      for (size_t i = 0; i < entries.size(); ++i) std::copy_n(&x[i * k], k, &inner[entries[i] * k]);
      const std::vector<float> d = decoded(grouped_for_test(device, own, x, kBF16, world.routing(), kF32, kOut), kF32);
      for (int64_t entry = 0; entry < rows * top_k; ++entry) {
        ASSERT_EQ(std::isnan(d[entry * n]), routing.routed.experts[entry] < 0) << "entry " << entry;
      }
      const std::vector<float> before = normal_values(rows * n, 6);
      const DeviceTensor from(device, d), to(device, before);
      combine_experts(device.stream(), world.routing(), from.view(kF32, {rows * top_k, n}), to.view(kF32, {rows, n}));
      const std::vector<float> y = to.read<float>();
      for (int64_t row = 0; row < rows; ++row) {
        const int32_t* chosen = &routing.routed.experts[row * top_k];
        const bool any = std::any_of(chosen, chosen + top_k, [](int32_t e) { return e >= 0; });
        for (int64_t i = row * n; i < (row + 1) * n; ++i) {
          ASSERT_TRUE(any || y[i] == before[i]) << "row " << row;
          Sum sum;
          combine_oracle(routing, row, own, inner, i % n, sum);
          const double bound = sum_bound(sum, k + top_k) + kRound * (std::fabs(before[i]) + std::fabs(y[i]));
          ASSERT_NEAR(y[i], before[i] + sum.value, bound) << "row " << row << " column " << i % n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace volley::ops
