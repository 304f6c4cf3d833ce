// Protects, on a GPU of compute capability 9.0: FP8 weights as they are packed, value for value; products of codes,
// exactly where sums are small whole numbers and within what the matrix unit loses elsewhere, for every tile, layout
// and end; that a row's bits depend on nothing but the row and the weights. Plans and refusals are checked
// anywhere.
#include <gtest/gtest.h>

#include <random>

#include "ops/linear/cuda/linear_cuda_fp8_for_test.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32;

LinearWeight pack(Device& device, const std::vector<float>& values, int64_t k, LinearLayout layout) {
  const int64_t n = static_cast<int64_t>(values.size()) / k;
  const int64_t first = layout == LinearLayout::kGateUp ? n / 2 : n / 3;
  const std::vector<WeightRows> parts = {{values.data(), kF32, first}, {values.data() + first * k, kF32, n - first}};
  return std::move(pack_linear(device, parts, k, kF8, layout)).value();
}

using Case = Fp8Case;

// Weights that packing quantises, a scale for each row.
struct RowWeights {
  static constexpr WeightFormat kFormat = kFp8Rows;
  using Row = QuantisedRow;
  Case c;
  std::vector<float> values;

  RowWeights(const Case& of, uint32_t seed) : c(of), values(normal_values(c.n * c.k, seed)) {}
  LinearWeight pack(Device& device) const { return ops::pack(device, values, c.k, layout_of(c.kind)); }
  Sum oracle(int64_t output, const Row& x) const {
    const Row w(&values[output * c.k], c.k);
    const Sum sum = sum_of_codes(w.values.data(), x.values.data(), c.k);
    const double scale = double{w.scale} * x.scale;
    return {sum.value * scale, sum.bound * scale * 1.001};
  }
  static std::vector<float> inputs(int64_t rows, int64_t k) { return normal_values(rows * k, 5); }
};

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCudaFp8, Fp8Products, RowWeights);

TEST(LinearCudaFp8, PacksWhatTheQuantiserMakes) {
  FP8_DEVICE_OR_SKIP(device);
  for (LinearLayout layout : {LinearLayout::kPlain, LinearLayout::kGateUp}) {
    const int64_t n = 152, k = 272, blocks = linear_cuda_k_blocks(k, kF8);
    std::vector<float> values = normal_values(n * k, 2);
    for (int64_t i = 0; i < k; ++i) values[7 * k + i] = 0;
    const LinearWeight w = pack(device, values, k, layout);
    std::vector<Float8E4M3> packed(w.packed.bytes());
    device.download(packed.data(), w.packed.data(), packed.size());
    std::vector<float> scales(linear_cuda_panels(n, layout) * kPanelRows);
    device.download(scales.data(), linear_cuda_scales(w), scales.size() * sizeof(float));
    for (int64_t row = 0; row < n; ++row) {
      const QuantisedRow want(&values[row * k], k);
      const int64_t to = packed_row(row, n, layout), r = to % kPanelRows;
      ASSERT_EQ(scales[to], want.scale);
      for (int64_t i = 0; i < blocks * 128; ++i) {
        const int64_t block = to / kPanelRows * blocks + i / 128, piece = i % 128 / 16;
        const Float8E4M3 code = packed[block * kBlockBytes + r * 128 + (piece ^ (r % 8)) * 16 + i % 16];
        ASSERT_EQ(to_float(code), i < k ? want.values[i] : 0) << "row " << row << " column " << i;
      }
    }
  }
}

// Whole numbers from -2 to 2 in column 1 and after; column 0 sets the scale of a row to a power of two of its own, and
// counts in no product, because of each pair one is zero there.
std::vector<float> whole_numbers(int64_t rows, int64_t k, uint32_t seed, bool first_column) {
  std::mt19937 random(seed);
  std::vector<float> values(rows * k);
  for (int64_t row = 0; row < rows; ++row) {
    const int exponent = static_cast<int>(row % 5) - 2;
    for (int64_t i = 0; i < k; ++i) {
      values[row * k + i] = std::ldexp(static_cast<float>(static_cast<int>(random() % 5) - 2), exponent);
    }
    values[row * k] = first_column ? std::ldexp(448.0f, exponent) : 0;
    values[row * k + 1] = first_column ? 0 : std::ldexp(448.0f, exponent);
  }
  return values;
}

// Every tile, one and two slices of k, and ends that no tile divides: each output is the number that it must be.
TEST(LinearCudaFp8, WholeNumbersAreExact) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Case& c : kExactCases) {
    const int64_t most = 300;
    const std::vector<float> weights = whole_numbers(c.n, c.k, 1, true), x = whole_numbers(most, c.k, 2, false);
    const std::vector<float> before = normal_values(most * c.n, 3);
    std::vector<float> want(most * c.n);
    for (int64_t i = 0; i < most * c.n; ++i) {
      const float* const a = &x[i / c.n * c.k];
      const float* const b = &weights[i % c.n * c.k];
      float sum = 0;
      for (int64_t j = 2; j < c.k; ++j) sum += a[j] * b[j];
      want[i] = c.kind == EndKind::kAdd ? before[i] + sum : sum;
    }
    expect_exact(device, c, pack(device, weights, c.k, LinearLayout::kPlain), x, before, want);
  }
}

TEST(LinearCudaFp8, RefusesShapesWithoutAKernel) {
  FP8_DEVICE_OR_SKIP(device);
  const std::vector<float> values(64 * 64);
  for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{64, 24}, {66, 32}}) {
    const std::vector<WeightRows> parts = {{values.data(), kF32, rows}};
    const auto packed = pack_linear(device, parts, k, kF8);
    ASSERT_FALSE(packed.ok());
    EXPECT_EQ(packed.error().code, ErrorCode::kUnimplemented);
    EXPECT_NE(packed.error().message.find("float8_e4m3"), std::string::npos);
  }
}

TEST(LinearCudaFp8Plan, PackedBytesHoldBlocksAndScales) {
  EXPECT_EQ(linear_cuda_packed_bytes(128, 208, kF8, LinearLayout::kPlain), 2 * 2 * 8192 + 128 * 4);
  EXPECT_EQ(linear_cuda_packed_bytes(66, 64, kF8, LinearLayout::kGateUp), 2 * 8192 + 128 * 4);
}

TEST(LinearCudaFp8Plan, ChoosesTheKernel) {
  LinearWeight w;
  w.n = w.k = 64;
  w.format.code = kF8;
  EXPECT_EQ(linear_cuda_kernel({.compute_capability = 90}, w, kF8), LinearKernel::kTiles);
  EXPECT_FALSE(linear_takes_fp8(DeviceKind::kCuda, {.compute_capability = 80}));
  EXPECT_FALSE(linear_takes_fp8(DeviceKind::kCuda, {.compute_capability = 100}));
  EXPECT_FALSE(linear_takes_fp8(DeviceKind::kCpu, {.compute_capability = 90}));
}

TEST(LinearCudaFp8Plan, SplitDoesNotDependOnTheRows) {
  expect_split_kept(kF8, {64, 4096, 6144, 151936}, [](const LinearCudaPlan&) {});
}

}  // namespace
}  // namespace volley::ops
