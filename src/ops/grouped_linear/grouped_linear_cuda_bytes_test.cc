// Protects: e4m3 codes of experts as they are packed, code for code, on any machine; and on a GPU, that their products
// match an fp64 oracle and are those with the bf16 weights that the codes stand for, bit for bit, by every kernel.
#include <bit>
#include <set>

#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear_cuda_codes_pack.h"
#include "ops/grouped_linear/grouped_linear_testing.h"
#include "ops/quantise/quantise_for_test.h"

namespace volley::ops {
namespace {

constexpr WeightFormat kFormats[] = {kFp8Weights, {DType::kF8E4M3, 1, 64}};

// Scales as in checkpoints: bf16 numbers, fp32 numbers, powers of two of any size; and all of these in one.
enum class Scales { kBF16, kF32, kPowers, kMixed };

float scale_of(Scales scales, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (scales == Scales::kMixed) scales = static_cast<Scales>(bits % 3);
  if (scales == Scales::kPowers) return std::ldexp(1.0f, static_cast<int>(bits / 3 % 24) - 16);
  return scales == Scales::kBF16 ? to_float(to_bfloat16(value * 0.01f)) : value * 0.01f;
}

// Experts with every kind of code but NaN.
struct Codes {
  WeightFormat format;
  LinearLayout layout;
  int64_t experts, n, k, groups;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  Codes(const WeightFormat& format, LinearLayout layout, Scales kind, int64_t experts, int64_t n, int64_t k,
        uint32_t seed = 1)
      : format(format),
        layout(layout),
        experts(experts),
        n(n),
        k(k),
        groups((k + format.group_k - 1) / format.group_k) {
    for (float v : normal_values(experts * n * k, seed)) {
      const uint32_t code = std::bit_cast<uint32_t>(v) >> 9 & 0xff;
      codes.push_back(static_cast<uint8_t>((code & 0x7f) == 0x7f ? code - 1 : code));
    }
    for (float v : normal_values(experts * n * groups, seed + 1)) scales.push_back(scale_of(kind, v));
  }
  int64_t group_of(int64_t row, int64_t i) const { return row * groups + i / format.group_k; }
  // row: counted over all experts.
  float value(int64_t row, int64_t i) const {
    return to_float(Float8E4M3{codes[row * k + i]}) * scales[group_of(row, i)];
  }
  std::vector<WeightRows> parts(bool as_values) const {
    const int64_t rows = layout == kGateUp ? n / 2 : n;
    std::vector<WeightRows> parts;
    for (int64_t first = 0; first < experts * n; first += rows) {
      WeightRows part;
      part.rows = rows;
      if (as_values) {
        part.values = [this, first](int64_t row, float* values) {
          for (int64_t i = 0; i < k; ++i) values[i] = value(first + row, i);
        };
      } else {
        part.codes = [this, first](int64_t row, const CodedRow& out) {
          std::copy_n(&codes[(first + row) * k], k, out.codes.begin());
          std::copy_n(&scales[(first + row) * groups], groups, out.scales.begin());
        };
      }
      parts.push_back(std::move(part));
    }
    return parts;
  }
  // Packed: as they are, or widened to `dtype`.
  Experts packed(Device& device, std::optional<DType> dtype = {}) const {
    Experts w(device, 1, 2, 1, dtype.value_or(kBF16), layout);
    w.count = experts;
    w.n = n;
    w.k = k;
    const WeightFormat to = dtype ? WeightFormat(*dtype) : format;
    w.packed = std::move(pack_experts(device, parts(dtype.has_value()), experts, k, to, layout)).value();
    return w;
  }
};

// In host memory.
ExpertWeights packed_on_host(Device& cpu, const std::vector<WeightRows>& parts, const Codes& of) {
  ExpertWeights w{of.experts, of.n, of.k, of.format, of.layout, Buffer()};
  return std::move(pack_code_experts(cpu, parts, std::move(w))).value();
}

// The words of the block that has column i of a row of all experts', and those of the block that has its scales.
struct Blocks {
  const uint32_t *codes, *scales;
};
Blocks blocks_of(const ExpertWeights& w, int64_t row, int64_t i) {
  const int64_t rows = w.layout == kGateUp ? w.n / 2 : w.n, blocks = (w.k + 63) / 64, block = i / 64;
  const bool share = w.format.group_k == 128;
  const auto bytes_before = [&](int64_t b) { return b * 4096 + (share ? (b + 1) / 2 : b) * 256; };
  const int64_t own = row % w.n, panels = (rows + (w.layout == kGateUp ? 31 : 63)) / (w.layout == kGateUp ? 32 : 64);
  const int64_t packed = grouped_cuda_row(own % rows, static_cast<int>(own / rows), w.layout);
  const auto* panel =
      static_cast<const char*>(w.packed.data()) + (row / w.n * panels + packed / 64) * bytes_before(blocks);
  const auto* codes = reinterpret_cast<const uint32_t*>(panel + bytes_before(block));
  return {codes, share ? reinterpret_cast<const uint32_t*>(panel + bytes_before(block / 2 * 2)) : codes};
}
float packed_scale(const ExpertWeights& w, int64_t row, int64_t i) {
  const int64_t rows = w.layout == kGateUp ? w.n / 2 : w.n, own = row % w.n;
  const int64_t at = grouped_cuda_row(own % rows, static_cast<int>(own / rows), w.layout) % 64;
  return std::bit_cast<float>(blocks_of(w, row, i).scales[1024 + (at / 16 * 8 + at % 8) * 2 + at % 16 / 8]);
}
// As the matrix unit's lanes read it: the lane that has this row and column, its step, and its register.
uint8_t packed_code(const ExpertWeights& w, int64_t row, int64_t i) {
  const int64_t rows = w.layout == kGateUp ? w.n / 2 : w.n, own = row % w.n;
  const int64_t at = grouped_cuda_row(own % rows, static_cast<int>(own / rows), w.layout) % 64;
  const int64_t lane = at % 8 * 4 + i % 8 / 2, step = i % 64 / 16, reg = at % 16 / 8 + i % 16 / 8 * 2;
  const uint32_t* lane_words = blocks_of(w, row, i).codes + at / 16 * 256 + step / 2 * 128 + lane * 4;
  return static_cast<uint8_t>(lane_words[step % 2 * 2 + reg / 2] >> (reg % 2 * 8 + i % 2 * 16) & 0xff);
}

TEST(GroupedLinearCudaBytes, PacksEachCodeAndScaleWhereTheKernelsReadIt) {
  auto cpu = *make_cpu_device(1);
  for (const WeightFormat& format : kFormats) {
    for (LinearLayout layout : {kPlain, kGateUp}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 256}, {74, 77}, {130, 192}, {6, 200}}) {
        SCOPED_TRACE(testing::Message() << format_name(format) << " n " << n << " k " << k);
        const Codes codes(format, layout, Scales::kMixed, 2, n, k);
        const ExpertWeights w = packed_on_host(*cpu, codes.parts(false), codes);
        ASSERT_EQ(static_cast<int64_t>(w.packed.bytes()), 2 * packed_bytes(DeviceKind::kCuda, n, k, format, layout));
        for (int64_t row = 0; row < 2 * n; ++row) {
          for (int64_t i = 0; i < k; ++i) {
            ASSERT_EQ(packed_code(w, row, i), codes.codes[row * k + i]) << row << ", " << i;
            ASSERT_EQ(packed_scale(w, row, i), codes.scales[codes.group_of(row, i)]) << row << ", " << i;
          }
        }
      }
    }
  }
  std::set<std::pair<int, int>> places;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      places.insert({byte_place(row, column).word, byte_place(row, column).bit});
    }
  }
  EXPECT_EQ(places.size(), 4096u);
  EXPECT_EQ(places.rbegin()->first, 1023);
  // A byte a value and a scale of four for each 128.
  EXPECT_EQ(packed_bytes(DeviceKind::kCuda, 128, 256, kFp8Weights), 128 * 256 + 128 * 2 * 4);
}

// NaN in either half of a group: all of the group, of that row alone.
TEST(GroupedLinearCudaBytes, ACodeThatIsNanMakesItsGroupsScaleNan) {
  auto cpu = *make_cpu_device(1);
  for (const WeightFormat& format : kFormats) {
    for (const auto& [column, code] : {std::pair{3, 0x7f}, {70, 0xff}, {130, 0x7f}, {195, 0xff}}) {
      Codes codes(format, kPlain, Scales::kF32, 1, 70, 200);
      codes.codes[33 * codes.k + column] = static_cast<uint8_t>(code);
      const ExpertWeights w = packed_on_host(*cpu, codes.parts(false), codes);
      for (int64_t row : {32, 33, 34}) {
        for (int64_t i = 0; i < codes.k; ++i) {
          const bool hit = row == 33 && i / format.group_k == column / format.group_k;
          ASSERT_EQ(std::isnan(packed_scale(w, row, i)), hit) << row << ", " << i << " of " << column;
        }
      }
    }
  }
}

TEST(GroupedLinearCudaBytes, QuantisesValuesWhileTheyLoad) {
  auto cpu = *make_cpu_device(1);
  const int64_t n = 70, k = 300;
  const Codes shape(kFp8Weights, kPlain, Scales::kF32, 2, n, k);
  std::vector<float> values = rounded(normal_values(2 * n * k, 3), kBF16);
  values[5 * k + 140] = std::nanf("");
  const std::vector<char> bytes = encoded(values, kBF16);
  const std::vector<WeightRows> parts = {{bytes.data(), kBF16, n}, {bytes.data() + n * k * 2, kBF16, n}};
  const ExpertWeights w = packed_on_host(*cpu, parts, shape);
  for (int64_t row = 0; row < 2 * n; ++row) {
    for (int64_t first = 0; first < k; first += 128) {
      const int64_t count = std::min<int64_t>(128, k - first);
      const QuantisedRow want(&values[row * k + first], count);
      const float scale = packed_scale(w, row, first);
      ASSERT_EQ(std::isnan(scale), std::isnan(want.scale)) << row;
      if (std::isnan(scale)) continue;
      ASSERT_EQ(scale, to_float(to_bfloat16(want.scale)));
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(to_float(Float8E4M3{packed_code(w, row, first + i)}), want.values[i]) << row << ", " << first + i;
      }
    }
  }
}

TEST(GroupedLinearCudaBytes, ExpertsAloneAreStoredSo) {
  for (const WeightFormat& format : kFormats) {
    EXPECT_TRUE(experts_multiply_as_stored(DeviceKind::kCuda, format));
    EXPECT_FALSE(multiplies_as_stored(DeviceKind::kCuda, format));
    EXPECT_TRUE(experts_multiply_as_stored(DeviceKind::kCpu, format));
  }
  EXPECT_TRUE(experts_multiply_as_stored(DeviceKind::kCuda, kMxfp4Weights));
  for (const WeightFormat& format : {kFp8Rows, kFp8Blocks, WeightFormat(DType::kF8E4M3, 1, 32)}) {
    EXPECT_FALSE(experts_multiply_as_stored(DeviceKind::kCuda, format)) << format_name(format);
  }
}

struct Product {
  LinearLayout layout;
  GroupedRows rows;
  DType y;
};
constexpr Product kProducts[] = {{kGateUp, GroupedRows::kIn, kBF16},  // as models have them, and others
                                 {kPlain, GroupedRows::kOut, kF32},
                                 {kGateUp, GroupedRows::kIn, kF32},
                                 {kPlain, GroupedRows::kOut, kBF16}};

std::vector<float> x_of(const Product& p, const TestRouting& routing, int64_t k, DType dtype) {
  return rounded(normal_values((p.rows == GroupedRows::kIn ? routing.rows : routing.entries()) * k, 5), dtype);
}

// Few and many rows a tile, experts with all rows and with none; `favoured`: that many experts get all rows.
TEST(GroupedLinearCudaBytes, GivesTheBitsOfTheWidenedWeights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    for (Scales scales : {Scales::kBF16, Scales::kF32, Scales::kPowers, Scales::kMixed}) {
      for (const Product& p : kProducts) {
        if (&p >= kProducts + 2 && scales != Scales::kMixed) continue;
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{392, 328}, {74, 77}, {260, 192}}) {
          const Codes from(format, p.layout, scales, 16, n, k);
          Experts codes = from.packed(device);
          const Experts plain = from.packed(device, kBF16);
          for (int64_t rows : {1, 8, 40, 300}) {
            for (int32_t favoured : {0, 4}) {
              SCOPED_TRACE(testing::Message() << format_name(format) << " scales " << static_cast<int>(scales) << " n "
                                              << n << " k " << k << " rows " << rows << " favoured " << favoured);
              const TestRouting routing(device, 16, 4, rows, favoured);
              const std::vector<float> x = x_of(p, routing, k, kBF16);
              const BiasedEnd biased(device, plain);
              const auto want = grouped_for_test(device, plain, x, kBF16, routing.routing(), p.y, p.rows);
              const auto want_biased =
                  grouped_for_test(device, plain, x, kBF16, routing.routing(), p.y, p.rows, biased.end);
              for (bool portable : {false, true}) {
                codes.packed.portable = portable;
                ASSERT_EQ(grouped_for_test(device, codes, x, kBF16, routing.routing(), p.y, p.rows), want) << portable;
                ASSERT_EQ(grouped_for_test(device, codes, x, kBF16, routing.routing(), p.y, p.rows, biased.end),
                          want_biased)
                    << portable;
              }
            }
          }
        }
      }
    }
  }
}

// Rows in fp32, by the plain kernel: products with the values in fp32.
TEST(GroupedLinearCudaBytes, RowsInFloat32GiveTheBitsOfFloat32Weights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    for (const Product& p : kProducts) {
      const Codes from(format, p.layout, Scales::kMixed, 8, 74, 200);
      const Experts codes = from.packed(device), plain = from.packed(device, kF32);
      const TestRouting routing(device, 8, 2, 20);
      const std::vector<float> x = x_of(p, routing, 200, kF32);
      ASSERT_EQ(grouped_for_test(device, codes, x, kF32, routing.routing(), p.y, p.rows),
                grouped_for_test(device, plain, x, kF32, routing.routing(), p.y, p.rows));
    }
  }
}

TEST(GroupedLinearCudaBytes, MatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{264, 328}, {74, 77}}) {
      const Codes from(format, kPlain, Scales::kMixed, 8, n, k);
      Experts w = from.packed(device);
      for (int64_t rows : {1, 5, 40, 200}) {
        const TestRouting routing(device, 8, 2, rows, rows > 100 ? 2 : 0);
        const std::vector<float> x = x_of(kProducts[1], routing, k, kBF16);
        for (bool portable : {false, true}) {
          w.packed.portable = portable;
          const std::vector<float> y =
              decoded(grouped_for_test(device, w, x, kBF16, routing.routing(), kF32, GroupedRows::kOut), kF32);
          for (int64_t grouped = 0; grouped<routing.entries(); grouped += rows> 100 ? 7 : 1) {
            const int64_t entry = routing.routed.entries[grouped], expert = routing.routed.experts[entry];
            for (int64_t output = 0; output < n; ++output) {
              double sum = 0, magnitude = 0;
              for (int64_t i = 0; i < k; ++i) {
                const double weight = to_float(to_bfloat16(from.value(expert * n + output, i)));
                sum += weight * x[grouped * k + i];
                magnitude += std::fabs(weight * x[grouped * k + i]);
              }
              // The matrix unit may lose one unit in an addition rather than half of one.
              const double bound = 2 * static_cast<double>(k + 1) * 0x1p-24 * magnitude + 0x1p-24 * std::fabs(sum);
              ASSERT_NEAR(y[entry * n + output], sum, bound) << "row " << grouped << " output " << output;
            }
          }
        }
      }
    }
  }
}

TEST(GroupedLinearCudaBytes, ACodeThatIsNanMakesTheSameOutputsNan) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const WeightFormat& format : kFormats) {
    for (const Product& p : kProducts) {
      Codes from(format, p.layout, Scales::kBF16, 4, 200, 328);
      for (int64_t at : {3, 40 * 328 + 75, 130 * 328 + 300, 333 * 328 + 200}) from.codes[at] = 0x7f;
      Experts codes = from.packed(device);
      const Experts plain = from.packed(device, kBF16);
      const TestRouting routing(device, 4, 2, 20);
      const std::vector<float> x = x_of(p, routing, 328, kBF16);
      const auto want = grouped_for_test(device, plain, x, kBF16, routing.routing(), p.y, p.rows);
      int64_t nans = 0;
      for (float v : decoded(want, p.y)) nans += std::isnan(v) ? 1 : 0;
      EXPECT_GT(nans, 0);
      for (bool portable : {false, true}) {
        codes.packed.portable = portable;
        ASSERT_EQ(grouped_for_test(device, codes, x, kBF16, routing.routing(), p.y, p.rows), want) << portable;
      }
    }
  }
}

// Both products in one kernel, of groups of one width and of two, give the bits of each product with bf16 weights. With
// 31 panels of gate and up, or of down, 16 rows have tiles of four panels, the last of three.
TEST(GroupedLinearCudaBytes, InOneKernelGivesTheBitsOfTheWidenedWeights) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  constexpr int64_t kExperts = 16;
  for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{520, 192}, {200, 992}, {1960, 72}}) {
    for (const auto& [in, out] : {std::pair{kFormats[0], kFormats[0]}, {kFormats[0], kFormats[1]}}) {
      for (Scales scales : {Scales::kBF16, Scales::kMixed}) {
        const Codes up(in, kGateUp, scales, kExperts, 2 * inner, hidden);
        const Codes back(out, kPlain, scales, kExperts, hidden, inner, 3);
        const Experts gate_up = up.packed(device), down = back.packed(device);
        const Experts plain_gate_up = up.packed(device, kBF16), plain_down = back.packed(device, kBF16);
        for (int64_t rows : {1, 7, 16, 17, 40, 128}) {
          SCOPED_TRACE(testing::Message() << format_name(out) << ", hidden " << hidden << ", " << rows << " rows");
          const std::vector<float> want = run_experts(device, plain_gate_up, plain_down, rows, false);
          ASSERT_EQ(run_experts(device, gate_up, down, rows, true), want);
          ASSERT_EQ(run_experts(device, gate_up, down, rows, false), want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace volley::ops
