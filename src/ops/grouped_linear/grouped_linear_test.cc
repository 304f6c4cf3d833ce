// Protects: every output against an fp64 oracle, for all dtypes, layouts, ways of rows and ragged shapes; that a row's
// bits depend on nothing but the row; that rows that were left out, and experts that are elsewhere, are neither read
// nor written. Built twice: for the CPU, and with VOLLEY_OPS_TEST_CUDA for a GPU.
#include "ops/grouped_linear/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/sanitized.h"
#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear_testing.h"
#ifndef VOLLEY_OPS_TEST_CUDA
#include "ops/instruction_sets_for_test.h"
#endif

namespace volley::ops {
namespace {

struct Case {
  int32_t experts, top_k;
  int64_t rows, n, k;
  DType x, weights, y;
  LinearLayout layout;
  GroupedRows way;
  int32_t favoured = 0;
  bool portable = false;
  bool biased = false;  // BiasedEnd
  EndKind gates = EndKind::kClampedSwiGlu;
};

void check_values(Device& device, const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.top_k << " of " << c.experts << ", n " << c.n << " k "
                                  << c.k << ", " << dtype_name(c.x) << " x " << dtype_name(c.weights) << " to "
                                  << dtype_name(c.y) << (c.biased ? ", biased" : ""));
  const Experts w(device, c.experts, c.n, c.k, c.weights, c.layout, c.portable);
  const TestRouting routing(device, c.experts, c.top_k, c.rows, c.favoured);
  const bool in = c.way == GroupedRows::kIn;
  const std::vector<float> x = rounded(normal_values((in ? c.rows : routing.entries()) * c.k, 5), c.x);
  const BiasedEnd biased(device, w, c.gates);
  const End end = c.biased ? biased.end : end_of(w.packed);
  const std::vector<float> y = decoded(grouped_for_test(device, w, x, c.x, routing.routing(), c.y, c.way, end), c.y);
  const int64_t outputs = c.layout == LinearLayout::kGateUp ? c.n / 2 : c.n;
  // Every output of small cases, and some thousand of the others.
  const int64_t count = routing.entries() * outputs, step = c.k * count > (int64_t{1} << 23) ? 211 : 1;
  for (int64_t i = 0; i < count; i += step) {
    const int64_t grouped = i / outputs, entry = routing.routed.entries[grouped], output = i % outputs;
    const int64_t x_row = in ? entry / c.top_k : grouped, y_row = in ? grouped : entry;
    const auto [want, bound] =
        expected(w, c.biased ? &biased : nullptr, c.y, routing.routed.experts[entry], output, &x[x_row * c.k]);
    ASSERT_NEAR(y[y_row * outputs + output], want, bound) << "grouped row " << grouped << " output " << output;
  }
  for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
}

DEVICE_TEST(GroupedLinear, MatchesOracle) {
  DEVICE_UNDER_TEST;
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
DEVICE_TEST(GroupedLinear, MatchesOracleWithUnevenExperts) {
  DEVICE_UNDER_TEST;
  for (int64_t rows : {9, 17, 33, 65, 129, 300}) {
    check_values(device, {16, 4, rows, 256, 200, kBF16, kBF16, kBF16, kGateUp, kIn, 3});
    check_values(device, {16, 4, rows, 264, 128, kBF16, kBF16, kF32, kPlain, kOut, 3});
    check_values(device, {16, 4, rows, 264, 128, kBF16, kBF16, kBF16, kPlain, kOut});
  }
}

DEVICE_TEST(GroupedLinear, BiasesAndTheClampedActivationMatchTheOracle) {
  DEVICE_UNDER_TEST;
  for (int64_t rows : {1, 3, 40}) {
    for (const auto& [x, weights, y] :
         {std::tuple{kBF16, kBF16, kBF16}, {kBF16, kBF16, kF32}, {kF32, kBF16, kF32}, {kF32, kF32, kF32}}) {
      check_values(device, {8, 2, rows, 128, 72, x, weights, y, kGateUp, kIn, 0, false, true});
      check_values(device, {8, 2, rows, 128, 72, x, weights, y, kGateUp, kIn, 0, false, true, EndKind::kGeGlu});
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
    const Layer layer = {gate_up, down, d_dtype, Chain::kApart, biased};
    const std::vector<float> whole = run_layer(device, layer, all, x, 0, rows).y;
    for (float v : whole) ASSERT_FALSE(std::isnan(v));
    others.push_back(&device);
    for (Device* other : others) {
      for (const Batch& b : batches) {
        for (Chain chain : {Chain::kApart, Chain::kWhole}) {
          const Layer same = {gate_up, down, d_dtype, chain, biased};
          const std::vector<float> some = run_layer(*other, same, all, x, b.begin, b.rows).y;
          ASSERT_EQ(std::memcmp(some.data(), &whole[b.begin * hidden], some.size() * 4), 0)
              << b.rows << " rows from " << b.begin << ", " << dtype_name(dtype);
        }
      }
    }
  }
}

DEVICE_TEST(GroupedLinear, RowsAreIndependent) {
  DEVICE_UNDER_TEST;
  std::vector<Device*> others;
#ifndef VOLLEY_OPS_TEST_CUDA
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
DEVICE_TEST(GroupedLinear, WholeChainGivesTheBitsOfItsParts) {
  DEVICE_UNDER_TEST;
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
            const Layer whole = {gate_up, down, d, Chain::kWhole, biased},
                        apart = {gate_up, down, d, Chain::kApart, biased};
            ASSERT_EQ(run_layer(device, whole, all, x, 0, rows).y, run_layer(device, apart, all, x, 0, rows).y)
                << rows << " rows, " << top_k << " of " << experts << ", favoured " << favoured;
          }
        }
      }
    }
  }
}

// Parts that are columns of a matrix, or every second row or column, are packed as if they lay row by row.
DEVICE_TEST(GroupedLinear, PacksRowsOfAnyStrides) {
  DEVICE_UNDER_TEST;
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
DEVICE_TEST(GroupedLinear, LeavesRowsOut) {
  DEVICE_UNDER_TEST;
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

// Products and sums in the order of slots, each rounded once.
DEVICE_TEST(GroupedLinear, CombinesInTheOrderOfSlots) {
  DEVICE_UNDER_TEST;
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

DEVICE_TEST(GroupedLinear, NoRowsAndRowsThatGoNowhere) {
  DEVICE_UNDER_TEST;
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

#ifndef VOLLEY_OPS_TEST_CUDA

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
                                       WeightFormat(DType::kI4, 1, 128, true), kInt6Weights, kInt4Minimums}) {
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
