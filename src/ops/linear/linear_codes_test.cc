// Protects: products with weights that are codes against fp64 sums of the widened weights; that a row's bits depend on
// nothing but the row; the error of quantising; that values that are not finite stay visible. The packed layout of
// linear_cpu.h is read here by its description.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/sanitized.h"
#include "ops/instruction_sets_for_test.h"
#include "ops/linear/cpu/linear_cpu.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr WeightFormat kInt4Halves = {DType::kI4, 1, 32, false, true, true};
constexpr WeightFormat kFormats[] = {kFp8Weights,
                                     kInt4Weights,
                                     WeightFormat(DType::kF8E4M3, 1, 32),
                                     WeightFormat(DType::kI4, 1, 128),
                                     WeightFormat(DType::kI4, 1, 16, true),
                                     WeightFormat(DType::kI4, 1, 64, true),
                                     kMxfp4Weights,
                                     kNvfp4Weights,
                                     kInt8Weights,
                                     WeightFormat(DType::kI8, 1, 16, false, true),
                                     kInt6Weights,
                                     kInt6Minimums,
                                     kInt4Minimums,
                                     kInt4Halves};
// Weights quantised from values, unlike a checkpoint's codes.
constexpr WeightFormat kQuantised[] = {kFp8Weights, kInt4Weights, WeightFormat(DType::kI4, 1, 64)};

// Codes of all kinds, scales and minimums of both signs and zero points up to 16, where the format is only read; the
// values else. Those of kI8 and kI6, and of formats with minimums, are exact in fp64.
LinearWeight pack(Device& device, const std::vector<float>& values, int64_t k, const WeightFormat& format,
                  LinearLayout layout = LinearLayout::kPlain) {
  const int64_t groups = (k + format.group_k - 1) / format.group_k;
  const auto coded = [&](int64_t first) {
    return [&values, &format, k, groups, first](int64_t row, const CodedRow& out) {
      for (int64_t i = 0; i < k; ++i) {
        const auto bits = std::bit_cast<uint32_t>(values[(first + row) * k + i]);
        out.codes[i] = static_cast<uint8_t>((bits >> 9) % (1 << format.code_bits()));
      }
      for (int64_t g = 0; g < groups; ++g) {
        const float value = values[(first + row) * k + g * format.group_k];
        out.scales[g] = value * 0.01f;
        if (format.code == DType::kI8 || format.code == DType::kI6 || format.minimums)
          out.scales[g] = to_float(to_bfloat16(value * 0.001f));
        if (format.minimums) out.minimums[g] = to_float(to_bfloat16(value * -0.01f));
        if (format.zeros) out.zeros[g] = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) % 17);
      }
    };
  };
  const int64_t n = static_cast<int64_t>(values.size()) / k, half = layout == LinearLayout::kGateUp ? n / 2 : n;
  std::vector<WeightRows> parts = {{values.data(), DType::kF32, half}};
  if (half != n) parts.push_back({values.data() + half * k, DType::kF32, n - half});
  if (format.zeros || (format.code != DType::kF8E4M3 && format != WeightFormat(DType::kI4, 1, format.group_k))) {
    parts[0].codes = coded(0);
    if (half != n) parts[1].codes = coded(half);
  }
  return std::move(pack_linear(device, parts, k, format, layout)).value();
}

// Codes, scales and minimums of a packed matrix.
struct Unpacked {
  double value(int64_t row, int64_t i) const { return codes[row * k + i] * scale(row, i) + minimum(row, i); }
  double scale(int64_t row, int64_t i) const { return scales[row * groups + i / group_k]; }
  double minimum(int64_t row, int64_t i) const { return minimums[row * groups + i / group_k]; }
  // The sum of the magnitudes of the two addends of x times a value.
  double magnitude(double x, int64_t row, int64_t i) const {
    const double least = minimum(row, i);
    return std::fabs(x * (value(row, i) - least)) + std::fabs(x * least);
  }
  int64_t k = 0, groups = 0, group_k = 1;
  std::vector<double> codes, scales, minimums;
};

Unpacked unpack(const LinearWeight& w) {
  const bool nibbles = w.format.is_nibbles();
  const int64_t pairs = nibbles ? 4 : 2, half = w.n / 2, head = linear_group_head_bytes(w.format);
  Unpacked u = {w.k, (w.k + w.format.group_k - 1) / w.format.group_k, w.format.group_k, {}, {}, {}};
  for (int64_t row = 0; row < w.n; ++row) {
    int64_t panel = row / kPanelWidth, lane = row % kPanelWidth;
    if (w.layout == LinearLayout::kGateUp) {
      panel = row % half / kPanelWidth * 2 + row / half;
      lane = row % half % kPanelWidth;
    }
    const auto* groups = static_cast<const char*>(w.packed.data()) + panel * linear_panel_bytes(w.k, w.format);
    for (int64_t i = 0; i < w.k; ++i) {
      const char* group = groups + i / u.group_k * linear_group_bytes(w.format);
      const int64_t column = i % u.group_k, in_word = column % (2 * pairs);
      uint32_t word = 0, high = 0, code = 0;
      if (w.format.code == DType::kI6) {
        const int64_t at = column % 16;
        const char* lines = group + head + column / 16 * 3 * kLineBytes + lane * 4;
        std::memcpy(&word, lines + at / 8 * kLineBytes, 4);
        std::memcpy(&high, lines + 2 * kLineBytes, 4);
        code = ((word >> (at % 2 * 16 + at % 8 / 2 * 4)) & 0xf) | ((high >> (at % 2 * 16 + at / 2 * 2)) & 3) << 4;
      } else {
        std::memcpy(&word, group + head + column / (2 * pairs) * kLineBytes + lane * 4, 4);
        code = word >> (in_word % 2 * 16 + in_word / 2 * (nibbles ? 4 : 8));
      }
      const auto head_value = [&](int second) {
        float value = 0;
        Float16 half = {};
        std::memcpy(&value, group + second * kLineBytes + lane * 4, 4);
        std::memcpy(&half, group + second * kLineBytes / 2 + lane * 2, 2);
        return w.format.halves ? to_float(half) : value;
      };
      const float scale = head_value(0), minimum = w.format.minimums ? head_value(1) : 0;
      const float zero = w.format.zeros ? head_value(1) : w.format.minimums ? 0 : 8;
      if (w.format.code == DType::kI4) {
        u.codes.push_back(static_cast<double>(code & 0xf) - zero);
      } else if (nibbles) {
        u.codes.push_back(kFloat4E2M1[code & 7] * ((code & 8) == 0 ? 1 : -1));
      } else if (w.format.code == DType::kI6) {
        u.codes.push_back(static_cast<double>(code) - 32);
      } else if (w.format.code == DType::kI8) {
        u.codes.push_back(static_cast<int8_t>(code & 0xff));
      } else {
        u.codes.push_back(to_float(Float8E4M3{static_cast<uint8_t>(code & 0xff)}));
      }
      if (column == 0) u.scales.push_back(scale);
      if (column == 0) u.minimums.push_back(minimum);
    }
  }
  return u;
}

struct Rows {
  int64_t rows, k;
  DType dtype;
  std::vector<float> values;  // exact in dtype
  std::vector<BFloat16> bf16;

  Rows(int64_t rows, int64_t k, DType dtype, uint32_t seed)
      : rows(rows), k(k), dtype(dtype), values(normal_values(rows * k, seed)) {
    for (float& v : values) {
      bf16.push_back(to_bfloat16(v));
      if (dtype == DType::kBF16) v = to_float(bf16.back());
    }
  }
  void set(int64_t i, float v) {
    values[i] = v;
    bf16[i] = to_bfloat16(v);
  }
  TensorView view(int64_t begin, int64_t count) {
    void* data = dtype == DType::kF32 ? static_cast<void*>(values.data()) : bf16.data();
    return TensorView(data, dtype, {rows, k}).rows(begin, count);
  }
};

std::vector<float> product(Device& device, const LinearWeight& w, Rows& x, int64_t begin, int64_t count,
                           EndKind kind = EndKind::kStore, const std::vector<float>& before = {}) {
  const int64_t columns = kind == EndKind::kSwiGlu ? w.n / 2 : w.n;
  std::vector<float> y(count * columns, std::numeric_limits<float>::quiet_NaN());
  if (!before.empty()) y = before;
  Arena none{Buffer()};
  linear(device.stream(), w, x.view(begin, count), TensorView(y.data(), DType::kF32, {count, columns}), {kind}, none);
  return y;
}

// Each code times x is exact or rounded once, a group's sum rounds once an addend, its scale and the sum of groups once
// a group; sums of x, which minimums multiply, likewise.
void check_product(int64_t rows, int64_t k, int64_t n, const WeightFormat& format, DType x_dtype) {
  auto device = *make_cpu_device(2);
  const LinearWeight w = pack(*device, normal_values(n * k, 1), k, format);
  const Unpacked u = unpack(w);
  Rows x(rows, k, x_dtype, 2);
  const std::vector<float> before = normal_values(rows * n, 3);
  const std::vector<float> stored = product(*device, w, x, 0, rows);
  const std::vector<float> added = product(*device, w, x, 0, rows, EndKind::kAdd, before);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += x.values[m * k + i] * u.value(j, i);
        magnitude += u.magnitude(x.values[m * k + i], j, i);
      }
      const double bound = (static_cast<double>(k + 2 * u.groups) + 2) * kRound * magnitude;
      const int64_t at = m * n + j;
      ASSERT_NEAR(stored[at], sum, bound) << m << ", " << j << " of " << rows << " x " << k << " x " << n << " "
                                          << format_name(format) << " " << dtype_name(x_dtype);
      ASSERT_EQ(added[at], before[at] + stored[at]);
    }
  }
}

TEST(LinearCodes, MatchOracle) {
  for (const WeightFormat& format : kFormats) {
    for (const DType x : {DType::kBF16, DType::kF32}) {
      for (int64_t rows = 1; rows <= 18; ++rows) check_product(rows, 160, 40, format, x);
      check_product(1, 1, 1, format, x);
      check_product(3, 7, 19, format, x);
      check_product(2, 5001, 70, format, x);
      check_product(5, 129, 16, format, x);
      check_product(16, 1031, 33, format, x);
      check_product(35, 512, 100, format, x);
    }
  }
}

TEST(LinearCodes, EveryInstructionSetMatchesOracle) {
  for_each_instruction_set([] {
    for (const WeightFormat& format : kFormats) {
      check_product(1, 300, 90, format, DType::kF32);
      check_product(7, 35, 20, format, DType::kF32);
    }
  });
}

// A one at k and zeros elsewhere return row k of the transposed weights, bit for bit.
TEST(LinearCodes, PackingKeepsEveryCode) {
  auto device = *make_cpu_device(3);
  const int64_t k = 301, n = 53;
  for (const WeightFormat& format : kFormats) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const LinearLayout layout : {LinearLayout::kPlain, LinearLayout::kGateUp}) {
        const int64_t rows = layout == LinearLayout::kGateUp ? 2 * n : n;
        std::vector<float> values = normal_values(rows * k, 1);
        // Codes of all sizes in each group: e4m3 has subnormal ones.
        for (size_t i = 0; i < values.size(); i += 3) values[i] *= std::ldexp(1.0f, -static_cast<int>(i % 17));
        const LinearWeight w = pack(*device, values, k, format, layout);
        const Unpacked u = unpack(w);
        Rows x(k, k, dtype, 2);
        for (int64_t i = 0; i < k * k; ++i) x.set(i, i % k == i / k ? 1.0f : 0.0f);
        if (layout == LinearLayout::kPlain) {
          const std::vector<float> y = product(*device, w, x, 0, k);
          for (int64_t i = 0; i < k * n; ++i) {
            ASSERT_EQ(y[i], static_cast<float>(u.value(i % n, i / n))) << i << " " << dtype_name(format.code);
          }
          continue;
        }
        const std::vector<float> y = product(*device, w, x, 0, k, EndKind::kSwiGlu);
        for (int64_t i = 0; i < k * n; ++i) {
          const double gate = u.value(i % n, i / n), up = u.value(n + i % n, i / n);
          const double want = gate / (1 + std::exp(-gate)) * up;
          ASSERT_NEAR(y[i], want, 8 * kRound * std::fabs(want));
        }
      }
    }
  }
}

// Each row alone on one thread, against batches of many sizes on 1 to 3 threads.
void check_rows_independent(const WeightFormat& format, DType dtype, LinearLayout layout, int64_t k, int64_t n) {
  auto reference = *make_cpu_device(1);
  const LinearWeight w = pack(*reference, normal_values(n * k, 1), k, format, layout);
  const EndKind kind = layout == LinearLayout::kGateUp ? EndKind::kSwiGlu : EndKind::kStore;
  Rows x(70, k, dtype, 3);
  std::vector<float> alone;
  for (int64_t m = 0; m < x.rows; ++m) {
    const std::vector<float> y = product(*reference, w, x, m, 1, kind);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  const int64_t columns = static_cast<int64_t>(alone.size()) / x.rows;
  for (int threads : {1, 2, 3}) {
    auto device = *make_cpu_device(threads);
    for (int64_t rows = 1; rows <= x.rows; rows += rows < 34 ? 1 : 9) {
      const int64_t begin = (rows * 7) % (x.rows - rows + 1);
      const std::vector<float> y = product(*device, w, x, begin, rows, kind);
      ASSERT_EQ(std::memcmp(y.data(), alone.data() + begin * columns, y.size() * sizeof(float)), 0)
          << rows << " rows from " << begin << ", " << threads << " threads, " << dtype_name(format.code) << " "
          << dtype_name(dtype);
    }
  }
}

TEST(LinearCodes, RowsAreIndependent) {
  for (const WeightFormat& format : kFormats) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      check_rows_independent(format, dtype, LinearLayout::kPlain, kSanitized ? 131 : 1027, 61);
      check_rows_independent(format, dtype, LinearLayout::kGateUp, kSanitized ? 64 : 512, 200);
    }
  }
}

// A row's NaN reaches neither its neighbours nor, through the padding of k, anything else.
TEST(LinearCodes, NeighboursStayOut) {
  auto device = *make_cpu_device(2);
  const int64_t k = 37, n = 20;
  for (const WeightFormat& format : kFormats) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const LinearWeight w = pack(*device, normal_values(n * k, 1), k, format);
      Rows x(40, k, dtype, 2);
      const std::vector<float> clean = product(*device, w, x, 0, 40);
      for (int64_t m = 0; m < x.rows; m += 2) {
        for (int64_t i = 0; i < k; ++i) x.set(m * k + i, std::nanf(""));
      }
      const std::vector<float> mixed = product(*device, w, x, 0, 40);
      for (int64_t m = 1; m < x.rows; m += 2) {
        ASSERT_EQ(std::memcmp(&clean[m * n], &mixed[m * n], n * sizeof(float)), 0) << m;
      }
    }
  }
}

// A code of e4m3 is the nearest: half a unit of three bits of mantissa, or of the smallest codes.
TEST(LinearCodes, Fp8LosesAtMostHalfAStep) {
  auto device = *make_cpu_device(2);
  const int64_t k = 700, n = 40;
  const std::vector<float> values = normal_values(n * k, 4);
  const Unpacked u = unpack(pack(*device, values, k, kFp8Weights));
  for (int64_t i = 0; i < n * k; ++i) {
    const double bound = std::max(std::fabs(values[i]) * 0x1p-4, u.scale(i / k, i % k) * 0x1p-10);
    ASSERT_NEAR(u.value(i / k, i % k), values[i], bound * (1 + 4 * kRound)) << i;
  }
}

// Never worse than the plain way, the extreme value as -8; and what 4 bits can say is kept.
TEST(LinearCodes, Int4LosesNoMoreThanAPlainScale) {
  auto device = *make_cpu_device(2);
  const int64_t k = 320, n = 40;
  std::vector<float> values = normal_values(n * k, 4);
  for (int64_t i = 0; i < k; ++i) values[i] = static_cast<float>(i % 16 - 8) * 0.375f;  // row 0
  const Unpacked u = unpack(pack(*device, values, k, kInt4Weights));
  for (int64_t i = 0; i < k; ++i) ASSERT_EQ(u.value(0, i), values[i]);
  double searched = 0, plain = 0;
  for (int64_t begin = 0; begin < n * k; begin += 32) {
    const auto by_magnitude = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const double scale = *std::max_element(&values[begin], &values[begin] + 32, by_magnitude) / -8.0;
    double group_searched = 0, group_plain = 0;
    for (int64_t i = begin; i < begin + 32; ++i) {
      const double code = scale == 0 ? 0 : std::clamp(std::nearbyint(values[i] / scale), -8.0, 7.0);
      group_plain += std::pow(values[i] - code * scale, 2);
      group_searched += std::pow(values[i] - u.value(i / k, i % k), 2);
    }
    ASSERT_LE(group_searched, group_plain * (1 + 1e-4) + 1e-12) << begin;
    searched += group_searched;
    plain += group_plain;
  }
  EXPECT_LT(searched, 0.9 * plain);
}

TEST(LinearCodes, WhatIsNotFiniteStaysVisible) {
  auto device = *make_cpu_device(1);
  const int64_t k = 150;
  for (const WeightFormat& format : kQuantised) {
    std::vector<float> values = normal_values(4 * k, 4);
    values[k + 3] = std::nanf("");
    values[2 * k + 140] = std::numeric_limits<float>::infinity();
    std::fill_n(&values[3 * k], k, 0.0f);
    values[3 * k + 149] = 1e-42f;
    const LinearWeight w = pack(*device, values, k, format);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      Rows x(1, k, dtype, 5);
      const std::vector<float> y = product(*device, w, x, 0, 1);
      EXPECT_TRUE(std::isfinite(y[0]));
      EXPECT_TRUE(std::isnan(y[1]));
      EXPECT_TRUE(std::isnan(y[2]));
      EXPECT_NEAR(y[3], 0, 1e-41);
    }
  }
}

TEST(LinearCodes, TakeTheirBytes) {
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kFp8Weights), 2 * 2 * (64 + 16 * 128));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kInt4Weights), 2 * 8 * (64 + 16 * 16));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 17, 33, kInt4Weights), 2 * 2 * (64 + 16 * 16));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kInt8Weights), 2 * 8 * (64 + 16 * 32));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kInt6Weights), 2 * 16 * (64 + 16 * 12));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kInt4Minimums), 2 * 8 * (128 + 16 * 16));
  EXPECT_EQ(packed_bytes(DeviceKind::kCpu, 32, 256, kInt4Halves), 2 * 8 * (64 + 16 * 16));
}

TEST(LinearCodes, OtherFormatsAreRefused) {
  auto device = *make_cpu_device(1);
  const std::vector<float> values(16 * 32);
  const WeightRows part = {values.data(), DType::kF32, 16};
  for (const WeightFormat& format :
       {kFp8Rows, WeightFormat(DType::kI4, 1, 48), WeightFormat(DType::kI4), WeightFormat(DType::kF8E4M3, 1, 32, true),
        kMxfp4Weights, WeightFormat(DType::kI4, 1, 32, true), kInt8Weights, kInt6Weights, kInt4Minimums,
        WeightFormat(DType::kF8E4M3, 1, 32, false, true)}) {
    EXPECT_EQ(pack_linear(*device, {{part}}, 32, format).error().code, ErrorCode::kUnimplemented);
  }
}

// A checkpoint's codes stay unchanged, also in fused parts: packed rows give them back.
TEST(LinearCodes, CodesArePackedAsTheyAre) {
  auto device = *make_cpu_device(1);
  const int64_t k = 200, rows[] = {17, 5};
  for (const WeightFormat& format : kFormats) {
    const int64_t groups = (k + format.group_k - 1) / format.group_k;
    const auto code_of = [&](int64_t row, int64_t i) {
      const auto code = static_cast<uint8_t>(row * 37 + i * 11);
      return static_cast<uint8_t>(format.code == DType::kF8E4M3 ? code % 127 : code % (1 << format.code_bits()));
    };
    // Values of fp16, also subnormal ones.
    const auto scale_of = [](int64_t row, int64_t g) {
      return (0.25f + static_cast<float>(row * 8 + g)) * (g == 1 ? 0x1p-22f : 1);
    };
    std::vector<WeightRows> parts(2);
    for (int64_t first = 0, p = 0; p < 2; first += rows[p++]) {
      parts[p].rows = rows[p];
      parts[p].codes = [=](int64_t row, const CodedRow& out) {
        for (int64_t i = 0; i < k; ++i) out.codes[i] = code_of(first + row, i);
        for (int64_t g = 0; g < groups; ++g) out.scales[g] = scale_of(first + row, g);
        for (uint8_t& zero : out.zeros) zero = 5;
        for (float& minimum : out.minimums) minimum = -0.75f;
      };
    }
    const Unpacked u = unpack(std::move(pack_linear(*device, parts, k, format)).value());
    for (int64_t row = 0; row < rows[0] + rows[1]; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t code = code_of(row, i);
        const double want = format.code == DType::kI4   ? code - (format.zeros      ? 5
                                                                  : format.minimums ? 0
                                                                                    : 8)
                            : format.code == DType::kI8 ? static_cast<int8_t>(code)
                            : format.code == DType::kI6 ? code - 32
                            : format.is_nibbles()       ? kFloat4E2M1[code & 7] * (code < 8 ? 1 : -1)
                                                        : to_float(Float8E4M3{code});
        const double least = format.minimums ? -0.75 : 0;
        ASSERT_EQ(u.value(row, i), want * scale_of(row, i / format.group_k) + least) << format_name(format);
      }
    }
  }
}

// In fp32 arithmetic these codes give the bits of weights with their values, whatever the instruction set.
TEST(LinearCodes, IntegersHaveTheBitsOfTheirValues) {
  for_each_instruction_set([] {
    auto device = *make_cpu_device(1);
    const int64_t k = 320, n = 40;
    for (const WeightFormat& format :
         {kInt8Weights, kInt8Minimums, kInt6Weights, kInt6Minimums, kInt4Minimums, kInt4Halves}) {
      const LinearWeight codes = pack(*device, normal_values(n * k, 1), k, format);
      const Unpacked u = unpack(codes);
      std::vector<float> values;
      for (int64_t i = 0; i < n * k; ++i) values.push_back(static_cast<float>(u.value(i / k, i % k)));
      const WeightRows part = {values.data(), DType::kF32, n};
      const LinearWeight plain = std::move(pack_linear(*device, {{part}}, k, DType::kF32)).value();
      for (const int64_t rows : {1, 3, 16, 21}) {
        Rows x(rows, k, DType::kF32, 2);
        ASSERT_EQ(product(*device, codes, x, 0, rows), product(*device, plain, x, 0, rows)) << format_name(format);
      }
    }
  });
}

// A code or a scale that is no number makes its group none.
TEST(LinearCodes, StoredNaNStaysVisible) {
  for_each_instruction_set([] {
    auto device = *make_cpu_device(1);
    for (const WeightFormat& format : {kFp8Weights, kInt4Halves}) {
      WeightRows part;
      part.rows = 2;
      part.codes = [&](int64_t row, const CodedRow& out) {
        std::ranges::fill(out.codes, uint8_t{0x8});
        std::ranges::fill(out.scales, 1.0f);
        if (row == 1 && format.halves) out.scales[0] = std::nanf("");
        if (row == 1 && !format.halves) out.codes[7] = 0xff;
      };
      const LinearWeight w = std::move(pack_linear(*device, {{part}}, 40, format)).value();
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        Rows x(1, 40, dtype, 5);
        const std::vector<float> y = product(*device, w, x, 0, 1);
        EXPECT_TRUE(std::isfinite(y[0]));
        EXPECT_TRUE(std::isnan(y[1]));
      }
    }
  });
}

// Rows that their part widens are packed as the same values in memory are.
TEST(LinearCodes, WidenedRowsArePackedAsValues) {
  auto device = *make_cpu_device(1);
  const int64_t k = 300, n = 21;
  const std::vector<float> values = normal_values(n * k, 6);
  WeightRows part;
  part.rows = n;
  part.values = [&](int64_t row, float* to) { std::copy_n(&values[row * k], k, to); };
  const WeightRows plain = {values.data(), DType::kF32, n};
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    const LinearWeight a = std::move(pack_linear(*device, {{part}}, k, storage)).value();
    const LinearWeight b = std::move(pack_linear(*device, {{plain}}, k, storage)).value();
    EXPECT_EQ(std::memcmp(a.packed.data(), b.packed.data(), b.packed.bytes()), 0);
  }
}

// The nearest of all 127 magnitudes, ties to the even code, on both sides of each and between them.
TEST(Float8, IsTheNearest) {
  std::vector<double> all;
  for (int code = 0; code < 127; ++code) all.push_back(to_float(Float8E4M3{static_cast<uint8_t>(code)}));
  for (int code = 0; code < 127; ++code) {
    const auto value = static_cast<float>(all[code]);
    EXPECT_EQ(to_float8_e4m3(value).bits, code);
    EXPECT_EQ(to_float8_e4m3(-value).bits, code | 0x80);
    if (code == 126) break;
    const auto middle = static_cast<float>((all[code] + all[code + 1]) / 2);
    EXPECT_EQ(to_float8_e4m3(middle).bits, code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(to_float8_e4m3(std::nextafter(middle, 0.0f)).bits, code);
    EXPECT_EQ(to_float8_e4m3(std::nextafter(middle, 1e9f)).bits, code + 1);
  }
  EXPECT_EQ(to_float8_e4m3(1e30f).bits, 126);
  EXPECT_EQ(to_float8_e4m3(-std::numeric_limits<float>::infinity()).bits, 126 | 0x80);
  EXPECT_EQ(to_float8_e4m3(std::nanf("")).bits & 0x7f, 0x7f);
}

}  // namespace
}  // namespace volley::ops
