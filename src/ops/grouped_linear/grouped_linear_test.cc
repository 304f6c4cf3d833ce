// Protects: every output against an fp64 oracle, for all dtypes, layouts, ways of rows and ragged shapes; that a row's
// bits depend on nothing but the row; that rows that were left out, and experts that are elsewhere, are neither read
// nor written. Built twice: for the CPU, and with VOLLEY_GROUPED_TEST_CUDA for a GPU.
#include "ops/grouped_linear/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/sanitized.h"
#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear_testing.h"

#ifdef VOLLEY_GROUPED_TEST_CUDA
#define GROUPED_TEST_DEVICE VOLLEY_CUDA_DEVICE_OR_SKIP(device)
#define GROUPED_TEST(name) TEST(GroupedLinearCuda, name)
#else
#include "ops/instruction_sets_for_test.h"
#define GROUPED_TEST_DEVICE                      \
  const auto device_owner = *make_cpu_device(2); \
  Device& device = *device_owner
#define GROUPED_TEST(name) TEST(GroupedLinear, name)
#endif

namespace volley::ops {
namespace {

constexpr double kRound = 0x1p-24;  // half a unit in the last place of fp32, relative
constexpr double kRoundBF16 = 0x1p-8;

struct Sum {
  double value = 0, magnitude = 0;
};

Sum oracle(const Experts& w, int64_t expert, int64_t output, const float* x) {
  Sum sum;
  const float* weights = &w.values[(expert * w.n + output) * w.k];
  for (int64_t i = 0; i < w.k; ++i) {
    const double product = static_cast<double>(x[i]) * weights[i];
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

// The matrix unit of a GPU truncates when it aligns addends, so an addition may lose one unit rather than half of one.
double sum_bound(const Sum& s, int64_t k) {
  return 2 * static_cast<double>(k + 1) * kRound * s.magnitude;
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

struct Case {
  int32_t experts, top_k;
  int64_t rows, n, k;
  DType x, weights, y;
  LinearLayout layout;
  GroupedRows way;
  int32_t favoured = 0;
  bool portable = false;
  bool biased = false;  // BiasedEnd
};

// What the clamped activation makes of gate and up, and the errors that theirs become. Its slopes: at most 1.1 along
// the gate, for any alpha, and nothing where it is clamped.
std::pair<double, double> clamped(double gate, double gate_error, double up, double up_error, double quick) {
  const double alpha = 1.702f, limit = 7;
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  const double gated = gate / (1 + std::exp(-alpha * gate));
  const double error = (1.1 * gate_error + quick * std::fabs(gated)) * (std::fabs(up + 1) + up_error + kRound);
  return {gated * (up + 1), error + std::fabs(gated) * (up_error + kRound * std::fabs(up + 1))};
}

// Value and bound of one output.
std::pair<double, double> expected(const Experts& w, const Case& c, const std::vector<float>& bias, int64_t expert,
                                   int64_t output, const float* x) {
  const auto sum_of = [&](int64_t row) {
    Sum sum = oracle(w, expert, row, x);
    if (c.biased) sum.value += bias[expert * c.n + row], sum.magnitude += std::fabs(bias[expert * c.n + row]);
    return sum;
  };
  const Sum sum = sum_of(output);
  double want = sum.value, error = sum_bound(sum, c.k);
  if (c.layout == LinearLayout::kGateUp && c.biased) {
    const Sum up = sum_of(c.n / 2 + output);
    const double quick = c.y == DType::kBF16 ? 0x1p-16 : 8 * kRound;
    std::tie(want, error) = clamped(sum.value, error, up.value, sum_bound(up, c.k), quick);
  } else if (c.layout == LinearLayout::kGateUp) {
    const Sum up = oracle(w, expert, c.n / 2 + output, x);
    want = silu(sum.value) * up.value;
    // What is about to be rounded to bf16 may take a quick exponential, good to 17 bits.
    const double quick = c.y == DType::kBF16 ? 0x1p-17 : 6 * kRound;
    const double gate_error = 1.1 * error + quick * std::fabs(silu(sum.value));
    const double up_error = sum_bound(up, c.k);
    error = gate_error * (std::fabs(up.value) + up_error) + std::fabs(silu(sum.value)) * up_error;
  }
  return {want, error * (1 + kRoundBF16) + std::fabs(want) * ((c.y == DType::kBF16 ? kRoundBF16 : 0) + kRound)};
}

void check_values(Device& device, const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.top_k << " of " << c.experts << ", n " << c.n << " k "
                                  << c.k << ", " << dtype_name(c.x) << " x " << dtype_name(c.weights) << " to "
                                  << dtype_name(c.y) << (c.biased ? ", biased" : ""));
  const Experts w(device, c.experts, c.n, c.k, c.weights, c.layout, c.portable);
  const TestRouting routing(device, c.experts, c.top_k, c.rows, c.favoured);
  const bool in = c.way == GroupedRows::kIn;
  const std::vector<float> x = rounded(normal_values((in ? c.rows : routing.entries()) * c.k, 5), c.x);
  const BiasedEnd biased(device, w.packed);
  const End end = c.biased ? biased.end : end_of(w.packed);
  const std::vector<float> y = decoded(grouped_for_test(device, w, x, c.x, routing.routing(), c.y, c.way, end), c.y);
  const int64_t outputs = c.layout == LinearLayout::kGateUp ? c.n / 2 : c.n;
  // Every output of small cases, and some thousand of the others.
  const int64_t count = routing.entries() * outputs, step = c.k * count > (int64_t{1} << 23) ? 211 : 1;
  for (int64_t i = 0; i < count; i += step) {
    const int64_t grouped = i / outputs, entry = routing.routed.entries[grouped], output = i % outputs;
    const int64_t x_row = in ? entry / c.top_k : grouped, y_row = in ? grouped : entry;
    const auto [want, bound] = expected(w, c, biased.values, routing.routed.experts[entry], output, &x[x_row * c.k]);
    ASSERT_NEAR(y[y_row * outputs + output], want, bound) << "grouped row " << grouped << " output " << output;
  }
  for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
}

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;
constexpr LinearLayout kPlain = LinearLayout::kPlain, kGateUp = LinearLayout::kGateUp;
constexpr GroupedRows kIn = GroupedRows::kIn, kOut = GroupedRows::kOut;

GROUPED_TEST(MatchesOracle) {
  GROUPED_TEST_DEVICE;
  for (int64_t rows : {1, 3, 40}) {
    for (const auto& [x, weights, y] :
         {std::tuple{kBF16, kBF16, kBF16}, {kBF16, kBF16, kF32}, {kF32, kBF16, kF32}, {kF32, kF32, kF32}}) {
      check_values(device, {8, 2, rows, 128, 72, x, weights, y, kGateUp, kIn});
      check_values(device, {8, 2, rows, 200, 136, x, weights, y, kPlain, kOut});
      check_values(device, {5, 3, rows, 37, 33, x, weights, y, kPlain, kIn});
      check_values(device, {5, 3, rows, 74, 129, x, weights, y, kGateUp, kOut});
    }
  }
}

// Experts with many rows beside experts with few, and with none.
GROUPED_TEST(MatchesOracleWithUnevenExperts) {
  GROUPED_TEST_DEVICE;
  for (int64_t rows : {9, 17, 33, 65, 129, 300}) {
    check_values(device, {16, 4, rows, 256, 200, kBF16, kBF16, kBF16, kGateUp, kIn, 3});
    check_values(device, {16, 4, rows, 264, 128, kBF16, kBF16, kF32, kPlain, kOut, 3});
    check_values(device, {16, 4, rows, 264, 128, kBF16, kBF16, kBF16, kPlain, kOut});
  }
}

GROUPED_TEST(BiasesAndTheClampedActivationMatchTheOracle) {
  GROUPED_TEST_DEVICE;
  for (int64_t rows : {1, 3, 40}) {
    for (const auto& [x, weights, y] :
         {std::tuple{kBF16, kBF16, kBF16}, {kBF16, kBF16, kF32}, {kF32, kBF16, kF32}, {kF32, kF32, kF32}}) {
      check_values(device, {8, 2, rows, 128, 72, x, weights, y, kGateUp, kIn, 0, false, true});
      check_values(device, {8, 2, rows, 200, 136, x, weights, y, kPlain, kOut, 0, false, true});
      check_values(device, {5, 3, rows, 37, 33, x, weights, y, kPlain, kIn, 0, false, true});
      check_values(device, {5, 3, rows, 74, 129, x, weights, y, kGateUp, kOut, 0, false, true});
    }
  }
  for (int64_t rows : {17, 65, 300}) {
    check_values(device, {16, 4, rows, 256, 200, kBF16, kBF16, kBF16, kGateUp, kIn, 3, false, true});
    check_values(device, {16, 4, rows, 264, 128, kBF16, kBF16, kF32, kPlain, kOut, 3, false, true});
  }
}

// What may differ in the chain of a layer without a trace in its bits.
enum class Chain { kApart, kWhole };

// Some rows of it: gate and up, down, combination with the residual stream.
std::vector<float> run_layer(Device& device, const Experts& gate_up, const Experts& down, const TestRouting& all,
                             const std::vector<float>& x, int64_t begin, int64_t rows, DType d_dtype, Chain chain,
                             bool biased = false) {
  RouterInputs in = all.inputs(begin, rows);
  in.zeroed = chain == Chain::kWhole ? experts_counters(all.rule, rows) : 0;
  RouterWorld world(device, all.rule, rows, in);
  world.run();
  const int64_t entries = rows * all.rule.top_k, hidden = gate_up.k, inner = down.k;
  const std::vector<float> some(x.begin() + begin * hidden, x.begin() + (begin + rows) * hidden);
  const DeviceTensor from(device, encoded(some, gate_up.dtype)), m(device, entries * inner * 4),
      d(device, entries * hidden * 4), y(device, some);
  const TensorView rows_in = from.view(gate_up.dtype, {rows, hidden}),
                   inner_rows = m.view(gate_up.dtype, {entries, inner}), out = d.view(d_dtype, {entries, hidden}),
                   sums = y.view(kF32, {rows, hidden});
  const BiasedEnd gate_up_biased(device, gate_up.packed), down_biased(device, down.packed);
  const End gate_up_end = biased ? gate_up_biased.end : end_of(gate_up.packed);
  const End down_end = biased ? down_biased.end : end_of(down.packed);
  if (chain == Chain::kWhole) {
    const ExpertsCall call = {gate_up.packed,      down.packed, rows_in,     inner_rows, out,
                              world.call().zeroed, sums,        gate_up_end, down_end};
    experts_ffn(device.stream(), call, world.routing());
    return y.read<float>();
  }
  grouped_linear(device.stream(), gate_up.packed, rows_in, world.routing(), inner_rows, {.rows = kIn}, gate_up_end);
  grouped_linear(device.stream(), down.packed, inner_rows, world.routing(), out, {.rows = kOut, .routing_ready = true},
                 down_end);
  combine_experts(device.stream(), world.routing(), out, sums);
  return y.read<float>();
}

struct Batch {
  int64_t begin, rows;
};

void check_rows_independent(Device& device, std::vector<Device*> others, DType dtype, int64_t rows, int64_t hidden,
                            int64_t inner, std::vector<Batch> batches, bool biased = false) {
  const Experts gate_up(device, 16, 2 * inner, hidden, dtype, kGateUp);
  const Experts down(device, 16, hidden, inner, dtype, kPlain);
  const TestRouting all(device, 16, 4, rows);
  const std::vector<float> x = rounded(normal_values(rows * hidden, 3), dtype);
  for (DType d_dtype : {kF32, dtype}) {
    const std::vector<float> whole = run_layer(device, gate_up, down, all, x, 0, rows, d_dtype, Chain::kApart, biased);
    for (float v : whole) ASSERT_FALSE(std::isnan(v));
    others.push_back(&device);
    for (Device* other : others) {
      for (const Batch& b : batches) {
        for (Chain chain : {Chain::kApart, Chain::kWhole}) {
          const auto some = run_layer(*other, gate_up, down, all, x, b.begin, b.rows, d_dtype, chain, biased);
          ASSERT_EQ(std::memcmp(some.data(), &whole[b.begin * hidden], some.size() * 4), 0)
              << b.rows << " rows from " << b.begin << ", " << dtype_name(dtype);
        }
      }
    }
  }
}

GROUPED_TEST(RowsAreIndependent) {
  GROUPED_TEST_DEVICE;
  std::vector<Device*> others;
#ifndef VOLLEY_GROUPED_TEST_CUDA
  const auto one = *make_cpu_device(1), three = *make_cpu_device(3);
  others = {one.get(), three.get()};
#endif
  const std::vector<Batch> batches = {{0, 1}, {7, 1}, {99, 1}, {3, 2}, {10, 8}, {20, 33}, {35, 65}, {1, 99}};
  check_rows_independent(device, others, kBF16, 100, 264, 136, batches);
  check_rows_independent(device, others, kF32, 100, 77, 45, batches);
  check_rows_independent(device, others, kBF16, 100, 264, 136, batches, true);
  check_rows_independent(device, others, kF32, 100, 77, 45, batches, true);
}

// One operation for the whole chain gives the bits of its parts: experts with many rows beside experts with few and
// with none, rows that are left out, any number of slots, and more rows than one kernel takes.
GROUPED_TEST(WholeChainGivesTheBitsOfItsParts) {
  GROUPED_TEST_DEVICE;
  for (const auto& [experts, top_k, hidden, inner] :
       {std::tuple{16, 4, 264, 136}, {8, 2, 128, 64}, {12, 12, 200, 72}, {40, 16, 512, 328}, {3, 1, 66, 40}}) {
    const Experts gate_up(device, experts, 2 * inner, hidden, kBF16, kGateUp);
    const Experts down(device, experts, hidden, inner, kBF16, kPlain);
    for (int64_t rows : {1, 5, 16, 17, 70, 300}) {
      if (kSanitized && rows > (hidden > 500 ? 5 : 17) && hidden > 200) continue;
      for (const auto& [favoured, skipped] : {std::pair{0, 0}, {top_k, 0}, {0, 3}}) {
        const TestRouting all(device, experts, top_k, rows, favoured, skipped);
        const std::vector<float> x = rounded(normal_values(rows * hidden, 3), kBF16);
        for (DType d : {kF32, kBF16}) {
          for (const bool biased : {false, true}) {
            ASSERT_EQ(run_layer(device, gate_up, down, all, x, 0, rows, d, Chain::kWhole, biased),
                      run_layer(device, gate_up, down, all, x, 0, rows, d, Chain::kApart, biased))
                << rows << " rows, " << top_k << " of " << experts << ", favoured " << favoured;
          }
        }
      }
    }
  }
}

// Parts that are columns of a matrix, or every second row or column, are packed as if they lay row by row.
GROUPED_TEST(PacksRowsOfAnyStrides) {
  GROUPED_TEST_DEVICE;
  const int64_t count = 3, rows = 38, k = 70;
  for (const DType dtype : {kBF16, kF32}) {
    const auto size = static_cast<int64_t>(dtype_size(dtype));
    const std::vector<float> values = rounded(normal_values(count * 2 * rows * k, 12), dtype);  // [count][row][2][k]
    std::vector<float> transposed(values.size()), apart(values.size());                         // [count][k][row][2]
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      const int64_t column = i % k, row = i / k % (2 * rows), expert = i / (2 * rows * k);
      transposed[(expert * k + column) * 2 * rows + row] = values[i];
      apart[((expert * 2 + row % 2) * rows + row / 2) * k + column] = values[i];
    }
    const std::vector<char> in_turn = encoded(values, dtype), columns = encoded(transposed, dtype),
                            dense = encoded(apart, dtype);
    std::vector<WeightRows> parts[3];
    for (int64_t i = 0; i < 2 * count; ++i) {
      const int64_t expert = i / 2 * 2 * rows * k;
      parts[0].push_back({dense.data() + i * rows * k * size, dtype, rows});
      parts[1].push_back({in_turn.data() + (expert + i % 2 * k) * size, dtype, rows, 2 * k});
      parts[2].push_back({columns.data() + (expert + i % 2) * size, dtype, rows, 2, 2 * rows});
    }
    const TestRouting routing(device, count, 2, 20);
    Experts w(device, count, 2 * rows, k, dtype, kGateUp);
    const std::vector<float> x = rounded(normal_values(20 * k, 5), dtype);
    std::vector<std::vector<char>> results;
    for (const auto& some : parts) {
      w.packed = std::move(pack_experts(device, some, count, k, dtype, kGateUp)).value();
      results.push_back(grouped_for_test(device, w, x, dtype, routing.routing(), kF32, kIn));
      ASSERT_EQ(results.back(), results.front()) << dtype_name(dtype);
    }
  }
}

// Rows that were left out hold NaN, and their results stay as they were.
GROUPED_TEST(LeavesRowsOut) {
  GROUPED_TEST_DEVICE;
  const int64_t rows = 30, n = 64, k = 72;
  const Experts w(device, 8, n, k, kBF16, kPlain);
  const TestRouting all(device, 8, 2, rows), some(device, 8, 2, rows, 0, 3);
  std::vector<float> x = rounded(normal_values(rows * k, 5), kBF16);
  const std::vector<float> clean = decoded(grouped_for_test(device, w, x, kBF16, all.routing(), kF32, kIn), kF32);
  for (int64_t r = 2; r < rows; r += 3) std::fill_n(x.begin() + r * k, k, std::nanf(""));
  const std::vector<float> y = decoded(grouped_for_test(device, w, x, kBF16, some.routing(), kF32, kIn), kF32);
  const int64_t routed = static_cast<int64_t>(some.routed.entries.size());
  ASSERT_EQ(routed, 2 * (rows - 10));
  for (int64_t i = 0; i < rows * 2 * n; ++i) {
    if (i / n >= routed) {
      ASSERT_TRUE(std::isnan(y[i])) << "written: " << i;
      continue;
    }
    const auto& entries = all.routed.entries;
    const int64_t before = std::find(entries.begin(), entries.end(), some.routed.entries[i / n]) - entries.begin();
    ASSERT_EQ(y[i], clean[before * n + i % n]);
  }

  // As the second product and the combination see them: d of rows that were left out is never written.
  const std::vector<float> d = decoded(
      grouped_for_test(device, w, std::vector<float>(rows * 2 * k, 1.0f), kBF16, some.routing(), kF32, kOut), kF32);
  const DeviceTensor d_device(device, d), y_device(device, std::vector<float>(rows * n, 2.0f));
  combine_experts(device.stream(), some.routing(), d_device.view(kF32, {rows * 2, n}), y_device.view(kF32, {rows, n}));
  const std::vector<float> sums = y_device.read<float>();
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_EQ(std::isnan(d[r * 2 * n]), r % 3 == 2);
    ASSERT_EQ(sums[r * n] == 2.0f, r % 3 == 2) << r;
    ASSERT_FALSE(std::isnan(sums[r * n]));
  }
}

// A rank's experts [first, first + count) of a whole.
Experts part_of(Device& device, const Experts& whole, int64_t first, int64_t count) {
  const LinearLayout layout = whole.packed.layout;
  Experts part(device, count, whole.n, whole.k, whole.dtype, layout);
  const int64_t size = whole.n * whole.k;
  part.values = {whole.values.begin() + first * size, whole.values.begin() + (first + count) * size};
  const std::vector<char> bytes = encoded(part.values, whole.dtype);
  const int64_t each = layout == kGateUp ? 2 : 1, rows = whole.n / each;
  std::vector<WeightRows> parts;
  for (int64_t i = 0; i < count * each; ++i) {
    parts.push_back(
        {bytes.data() + i * rows * whole.k * static_cast<int64_t>(dtype_size(whole.dtype)), whole.dtype, rows});
  }
  part.packed = std::move(pack_experts(device, parts, count, whole.k, whole.dtype, layout)).value();
  return part;
}

// What rows whose experts a rank has add to nothing, in fp64, with the magnitude of its addends.
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

// Ranks that divide the experts: each adds what its own give, the same bits in one operation or in its parts, for a row
// alone or among others; together it is the whole. Entries of other ranks hold NaN, which reaches nothing.
GROUPED_TEST(AddsTheExpertsThatAreHere) {
  GROUPED_TEST_DEVICE;
  constexpr int kExperts = 16, kTopK = 4, kHidden = 136, kInner = 64;
  const Experts gate_up(device, kExperts, 2 * kInner, kHidden, kBF16, kGateUp);
  const Experts down(device, kExperts, kHidden, kInner, kBF16, kPlain);
  for (const int64_t rows : {1, 5, 70, 300}) {
    const TestRouting whole(device, kExperts, kTopK, rows, 0, 3);
    const std::vector<float> x = rounded(normal_values(rows * kHidden, 3), kBF16);
    std::vector<double> addends(rows * kHidden);  // magnitudes of a row's: of each expert by itself
    for (const int parts : {kExperts, 8, 2}) {
      std::vector<double> sums(rows * kHidden), most(rows * kHidden);
      for (int part = 0; part < parts; ++part) {
        const int count = kExperts / parts;
        const Experts own_gate_up = part_of(device, gate_up, part * count, count);
        const Experts own_down = part_of(device, down, part * count, count);
        TestRouting own(device, kExperts, kTopK, rows, 0, 3);
        own.rule.own_first = part * count;
        own.rule.own_count = count;
        const std::vector<float> y = run_layer(device, own_gate_up, own_down, own, x, 0, rows, kBF16, Chain::kWhole);
        ASSERT_EQ(y, run_layer(device, own_gate_up, own_down, own, x, 0, rows, kBF16, Chain::kApart));
        for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
          const std::vector<float> alone =
              run_layer(device, own_gate_up, own_down, own, x, row, 1, kBF16, Chain::kWhole);
          ASSERT_EQ(std::memcmp(alone.data(), &y[row * kHidden], alone.size() * 4), 0) << "row " << row;
        }
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_FALSE(std::isnan(y[i]));
          sums[i] += double{y[i]} - x[i];
          if (parts == kExperts) addends[i] += std::fabs(double{y[i]} - x[i]);
          most[i] += std::fabs(y[i]) + std::fabs(x[i]);
        }
      }
      const std::vector<float> together = run_layer(device, gate_up, down, whole, x, 0, rows, kBF16, Chain::kWhole);
      for (size_t i = 0; i < sums.size(); ++i) {
        const double bound = 2 * kRound * (kTopK * addends[i] + most[i] + std::fabs(together[i]));
        ASSERT_NEAR(sums[i], double{together[i]} - x[i], bound) << i << " in " << parts << " parts";
      }
    }
  }
}

// The second product and the combination against the oracle, where some experts of a row are elsewhere.
GROUPED_TEST(CombinesWhatIsHere) {
  GROUPED_TEST_DEVICE;
  for (const auto& [experts, top_k, rows, n, k] :
       {std::tuple{16, 4, 40, 264, 128}, {8, 8, 3, 37, 33}, {512, 10, 20, 130, 64}}) {
    const Experts whole(device, experts, n, k, kBF16, kPlain);
    for (const auto& [first, count] : {std::pair{0, experts / 4}, {experts / 4, experts / 2}, {experts - 1, 1}}) {
      const Experts own = part_of(device, whole, first, count);
      TestRouting routing(device, experts, top_k, rows, 0, 3);
      routing.rule.own_first = first;
      routing.rule.own_count = count;
      RouterWorld world(device, routing.rule, rows, routing.all);
      world.run();
      routing.routed = world.read();
      const std::vector<int32_t>& entries = routing.routed.entries;
      const std::vector<float> x = rounded(normal_values(rows * top_k * k, 5), kBF16);  // grouped
      std::vector<float> inner(x.size(), std::nanf(""));                                // of each entry
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

// Products and sums in the order of slots, each rounded once.
GROUPED_TEST(CombinesInTheOrderOfSlots) {
  GROUPED_TEST_DEVICE;
  for (DType dtype : {kF32, kBF16}) {
    for (const auto& [rows, top_k, width] : {std::tuple{1, 1, 3}, {7, 8, 2048}, {300, 3, 260}, {2, 16, 1001}}) {
      const TestRouting routing(device, 16, top_k, rows);
      const std::vector<float> d = rounded(normal_values(rows * top_k * width, 5), dtype);
      std::vector<float> y = normal_values(rows * width, 6);
      const DeviceTensor from(device, encoded(d, dtype)), to(device, y);
      combine_experts(device.stream(), routing.routing(), from.view(dtype, {rows * top_k, width}),
                      to.view(kF32, {rows, width}));
      for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t row = i / width;
        volatile float sum = 0;  // each operation by itself
        for (int s = 0; s < top_k; ++s) {
          const volatile float product =
              routing.routed.weights[row * top_k + s] * d[(row * top_k + s) * width + i % width];
          sum = s == 0 ? product : sum + product;
        }
        y[i] += sum;
      }
      EXPECT_EQ(to.read<float>(), y) << rows << " " << top_k << " " << width;
    }
  }
}

GROUPED_TEST(NoRowsAndRowsThatGoNowhere) {
  GROUPED_TEST_DEVICE;
  const Experts w(device, 4, 16, 8, kBF16, kPlain);
  const TestRouting empty(device, 4, 2, 0);
  grouped_linear(device.stream(), w.packed, TensorView(nullptr, kBF16, {0, 8}), empty.routing(),
                 {nullptr, kF32, {0, 16}}, {.rows = kIn}, {});
  combine_experts(device.stream(), empty.routing(), {nullptr, kF32, {0, 16}}, {nullptr, kF32, {0, 16}});

  const TestRouting nowhere(device, 4, 2, 3, 0, 1);
  const std::vector<float> x = normal_values(3 * 8, 1);
  const std::vector<float> d = decoded(grouped_for_test(device, w, x, kBF16, nowhere.routing(), kF32, kIn), kF32);
  for (float v : d) ASSERT_TRUE(std::isnan(v));
  const std::vector<float> before = normal_values(3 * 16, 2);
  const DeviceTensor from(device, d), to(device, before);
  combine_experts(device.stream(), nowhere.routing(), from.view(kF32, {6, 16}), to.view(kF32, {3, 16}));
  EXPECT_EQ(to.read<float>(), before);
}

#ifndef VOLLEY_GROUPED_TEST_CUDA

TEST(GroupedLinear, MatchesOracleOnEveryInstructionSet) {
  auto device = *make_cpu_device(2);
  for_each_instruction_set([&] {
    for (const auto& [x, weights] : {std::pair{kBF16, kBF16}, {kF32, kBF16}, {kF32, kF32}}) {
      check_values(*device, {6, 2, 20, 74, 45, x, weights, kF32, kGateUp, kIn});
      check_values(*device, {6, 2, 20, 50, 45, x, weights, kF32, kPlain, kOut});
      check_values(*device, {6, 2, 20, 74, 45, x, weights, kF32, kGateUp, kIn, 0, false, true});
      check_values(*device, {6, 2, 20, 50, 45, x, weights, kF32, kPlain, kOut, 0, false, true});
    }
  });
}

// An expert's product for its rows is linear()'s, bit for bit: the same kernels in the same order.
void check_bits_of_linear(LinearLayout layout, const WeightFormat& format) {
  auto device = *make_cpu_device(2);
  const int64_t rows = 50, n = 90, k = 300;
  const Experts w(*device, 8, n, k, kBF16, layout, false, format);
  const TestRouting routing(*device, 8, 3, rows);
  const int64_t outputs = layout == kGateUp ? n / 2 : n;
  const std::vector<float> x = normal_values(rows * k, 5);
  const std::vector<char> grouped = grouped_for_test(*device, w, x, kBF16, routing.routing(), kF32, kIn);
  for (int64_t e = 0; e < 8; ++e) {
    const std::vector<char> bytes = encoded({&w.values[e * n * k], &w.values[(e + 1) * n * k]}, kBF16);
    std::vector<WeightRows> parts = {{bytes.data(), kBF16, n}};
    if (layout == kGateUp) parts = {{bytes.data(), kBF16, n / 2}, {bytes.data() + n / 2 * k * 2, kBF16, n / 2}};
    for (size_t i = 0; i < parts.size(); ++i) {
      bring_codes(parts[i], format, e * n + static_cast<int64_t>(i) * parts[i].rows);
    }
    const LinearWeight alone = std::move(pack_linear(*device, parts, k, format, layout)).value();
    const DeviceTensor x_device(*device, encoded(x, kBF16)), y(*device, rows * outputs * 4);
    Arena none{Buffer()};
    linear(device->stream(), alone, x_device.view(kBF16, {rows, k}), y.view(kF32, {rows, outputs}), end_of(w.packed),
           none);
    const std::vector<char> want = y.read<char>();
    for (int32_t i = routing.routed.offsets[e]; i < routing.routed.offsets[e + 1]; ++i) {
      const int64_t row = routing.routed.entries[i] / 3;
      ASSERT_EQ(std::memcmp(&grouped[i * outputs * 4], &want[row * outputs * 4], outputs * 4), 0) << e << " " << row;
    }
  }
}

TEST(GroupedLinear, GivesTheBitsOfLinear) {
  for (LinearLayout layout : {kPlain, kGateUp}) {
    for (const WeightFormat& format : {WeightFormat(kBF16), kFp8Weights, kInt4Weights, kMxfp4Weights, kNvfp4Weights,
                                       WeightFormat(DType::kI4, 1, 128, true)}) {
      check_bits_of_linear(layout, format);
    }
  }
}

TEST(GroupedLinear, RefusesWhatItCannotPack) {
  auto device = *make_cpu_device(1);
  const std::vector<float> values(64);
  const auto code = [&](std::vector<WeightRows> parts, int64_t experts, DType storage, LinearLayout layout) {
    return pack_experts(*device, parts, experts, 4, storage, layout).error().code;
  };
  const WeightRows four{values.data(), kF32, 4}, three{values.data(), kF32, 3}, ids{values.data(), DType::kI32, 4};
  EXPECT_EQ(code({four, four}, 0, kF32, kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({four, four}, 3, kF32, kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({four, four}, 2, kF32, kGateUp), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({four, three}, 2, kF32, kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({ids, ids}, 2, kF32, kPlain), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({four, four}, 2, DType::kF8E4M3, kPlain), ErrorCode::kUnimplemented);
}

#endif

}  // namespace
}  // namespace volley::ops
