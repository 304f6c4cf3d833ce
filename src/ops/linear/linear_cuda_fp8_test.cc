// Protects, on a GPU of compute capability 9.0: FP8 weights as they are packed, value for value; products of codes,
// exactly where sums are small whole numbers and within what the matrix unit loses elsewhere, for every tile, layout
// and end; that a row's bits depend on nothing but the row and the weights. Plans and refusals are checked
// anywhere.
#include <gtest/gtest.h>

#include <random>

#include "device/cuda/launch.h"
#include "ops/linear/linear_fp8_for_test.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr DType kF8 = DType::kF8E4M3, kF32 = DType::kF32, kBF16 = DType::kBF16;
constexpr double kRoundBF16 = 0x1p-8;

LinearWeight pack(Device& device, const std::vector<float>& values, int64_t k, LinearLayout layout) {
  const int64_t n = static_cast<int64_t>(values.size()) / k;
  const int64_t first = layout == LinearLayout::kGateUp ? n / 2 : n / 3;
  const std::vector<WeightRows> parts = {{values.data(), kF32, first}, {values.data() + first * k, kF32, n - first}};
  return std::move(pack_linear(device, parts, k, kF8, layout)).value();
}

// Rows of x as codes on the device.
class TestInput {
 public:
  TestInput(Device& device, const std::vector<float>& x, int64_t k)
      : k_(k),
        rows_(static_cast<int64_t>(x.size()) / k),
        codes_(device, x.size()),
        scales_(device, rows_ * sizeof(float)) {
    const DeviceTensor values(device, x);
    quantise_rows(device.stream(), values.view(kF32, {rows_, k}), rows(0, rows_));
    device.synchronize();
  }
  Input rows(int64_t begin, int64_t count) const {
    return {codes_.view(kF8, {rows_, k_}).rows(begin, count), scales_.view(kF32, {rows_}).rows(begin, count)};
  }

 private:
  int64_t k_, rows_;
  DeviceTensor codes_, scales_;
};

using Case = Fp8Case;

// y of `count` rows of x from `begin` on; y starts as `before` where it is added to.
std::vector<char> run(Device& device, const LinearWeight& w, const Case& c, const TestInput& x, int64_t begin,
                      int64_t count, const std::vector<float>& before = {}, const LinearCudaPlan* plan = nullptr,
                      TensorView bias = {}) {
  const int64_t outputs = c.outputs();
  const DeviceTensor out =
      c.kind == EndKind::kAdd
          ? DeviceTensor(device, std::vector<float>(&before[begin * outputs], &before[(begin + count) * outputs]))
          : DeviceTensor(device, static_cast<size_t>(count * outputs) * dtype_size(c.y));
  const TensorView y = out.view(c.y, {count, outputs});
  const End end = {c.kind, bias};
  if (plan != nullptr) {
    linear_tiles_cuda(device.stream(), w, x.rows(begin, count), y, end, *plan);
  } else {
    Arena none{Buffer()};
    linear(device.stream(), w, x.rows(begin, count), y, end, none);
  }
  return out.read<char>();
}

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
  for (const Case& c : {Case{200, 80, EndKind::kStore, kF32},
                        {1000, 528, EndKind::kStore, kF32},
                        {332, 2064, EndKind::kStore, kF32},
                        {332, 2064, EndKind::kAdd, kF32},
                        {9000, 272, EndKind::kAdd, kF32}}) {
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
    const LinearWeight w = pack(device, weights, c.k, LinearLayout::kPlain);
    const TestInput in(device, x, c.k);
    for (int64_t rows : {1, 9, 130, 300}) {
      for_tiles(c, kFp8Rows, rows, [&](const LinearCudaPlan& plan) {
        const std::vector<float> y = decode(run(device, w, c, in, 0, rows, before, &plan), kF32);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(y[i], want[i]) << "row " << i / c.n << " output " << i % c.n;
        }
      });
    }
  }
}

Sum oracle(const QuantisedRow& w, const QuantisedRow& x) {
  const Sum sum = sum_of_codes(w.values.data(), x.values.data(), static_cast<int64_t>(w.values.size()));
  const double scale = double{w.scale} * x.scale;
  return {sum.value * scale, sum.bound * scale * 1.001};
}

// Values of every output, or of some thousand; and that errors are small where bounds are wide.
void check_values(Device& device, const Case& c, std::initializer_list<int64_t> batches) {
  const std::vector<float> values = normal_values(c.n * c.k, 11);
  const LinearWeight w = pack(device, values, c.k, layout_of(c.kind));
  const int64_t most = std::max(batches), outputs = c.outputs();
  const std::vector<float> x = normal_values(most * c.k, 5), before = normal_values(most * outputs, 6);
  const TestInput in(device, x, c.k);
  for (int64_t count : batches) {
    const std::vector<float> y = decode(run(device, w, c, in, 0, count, before), c.y);
    for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
    double errors = 0, squares = 0, worst = 0;
    for (int64_t i = 0; i < count * outputs; i += 1 + c.k * count * outputs / (int64_t{1} << 22)) {
      const int64_t output = i % outputs;
      const QuantisedRow row(&x[i / outputs * c.k], c.k);
      Sum want = oracle(QuantisedRow(&values[output * c.k], c.k), row);
      if (c.kind == EndKind::kSwiGlu) {
        want = swiglu_of(want, oracle(QuantisedRow(&values[(outputs + output) * c.k], c.k), row));
      }
      if (c.kind == EndKind::kAdd) want.value += before[i];
      want.bound += std::fabs(want.value) * (c.y == kBF16 ? kRoundBF16 : 0x1p-22) + 0x1p-22;
      ASSERT_NEAR(y[i], want.value, want.bound) << "row " << i / outputs << " of " << count << " output " << output;
      errors += (y[i] - want.value) * (y[i] - want.value);
      squares += want.value * want.value;
      worst = std::max(worst, std::fabs(y[i] - want.value) / want.bound);
    }
    EXPECT_LT(std::sqrt(errors / squares), 2e-3 + (c.y == kBF16 ? kRoundBF16 / 2 : 0));
    std::printf("n %d k %d rows %d: error %.2e of the result, at most %.3f of the bound\n", static_cast<int>(c.n),
                static_cast<int>(c.k), static_cast<int>(count), std::sqrt(errors / squares), worst);
  }
}

TEST(LinearCudaFp8, MatchesOracle) {
  FP8_DEVICE_OR_SKIP(device);
  const auto rows = {int64_t{1}, int64_t{16}, int64_t{65}, int64_t{192}, int64_t{300}, int64_t{512}};
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {200, 80}, {1000, 528}, {1984, 4096}}) {
    check_values(device, {n, k, EndKind::kStore, kF32}, rows);
    check_values(device, {n, k, EndKind::kStore, kBF16}, rows);
    check_values(device, {n, k, EndKind::kAdd, kF32}, rows);
    check_values(device, {n, k, EndKind::kSwiGlu, kBF16}, rows);
  }
}

// The shapes of an 8B model, where the split along k is in use, and ones that no tile divides.
TEST(LinearCudaFp8, RowsAreIndependent) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Case& c : {Case{6144, 4096, EndKind::kStore, kF32},
                        {4096, 4096, EndKind::kAdd, kF32},
                        {24576, 512, EndKind::kSwiGlu, kBF16},
                        {1000, 1040, EndKind::kStore, kF32}}) {
    const LinearWeight w = pack(device, normal_values(c.n * c.k, 11), c.k, layout_of(c.kind));
    const std::vector<float> before = normal_values(512 * c.outputs(), 6);
    const TestInput x(device, normal_values(512 * c.k, 3), c.k);
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for (int64_t row : {0, 7, 256, 511}) {
      const std::vector<char> want = run(device, w, c, x, row, 1, before);
      for (int64_t rows : {2, 13, 16, 32, 64, 96, 128, 192, 256, 400, 512}) {
        const int64_t begin = std::max<int64_t>(0, std::min(row - rows / 3, 512 - rows));
        const std::vector<char> y = run(device, w, c, x, begin, rows, before);
        ASSERT_EQ(std::memcmp(&y[(row - begin) * row_bytes], want.data(), row_bytes), 0)
            << "row " << row << " in a batch of " << rows << " from " << begin << ", n " << c.n << " k " << c.k;
      }
    }
  }
}

// Also tiles that the plan does not choose for these rows; and a row of NaN stays alone.
void check_tiles(Device& device, int64_t rows, std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const LinearWeight w = pack(device, normal_values(c.n * c.k, 11), c.k, layout_of(c.kind));
    const std::vector<float> before = normal_values(rows * c.outputs(), 6);
    std::vector<float> x = normal_values(rows * c.k, 3);
    const std::vector<char> clean = run(device, w, c, TestInput(device, x, c.k), 0, rows, before);
    x[3 * c.k + 5] = std::nanf("");
    const TestInput in(device, x, c.k);
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for_tiles(c, kFp8Rows, rows, [&](const LinearCudaPlan& plan) {
      std::vector<char> y = run(device, w, c, in, 0, rows, before, &plan);
      const auto third = y.begin() + static_cast<int64_t>(3 * row_bytes);
      for (float v : decode({third, third + static_cast<int64_t>(row_bytes)}, c.y)) ASSERT_TRUE(std::isnan(v));
      std::copy_n(&clean[3 * row_bytes], row_bytes, third);
      ASSERT_EQ(std::memcmp(y.data(), clean.data(), y.size()), 0);
    });
  }
}

TEST(LinearCudaFp8, TilesGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles(device, 200,
              {{2000, 1040, EndKind::kStore, kF32},
               {2000, 2064, EndKind::kAdd, kF32},
               {2000, 2064, EndKind::kSwiGlu, kBF16},
               {24576, 256, EndKind::kSwiGlu, kBF16}});
}

// As little work as reaches every tile, with one and two slices of k: what compute-sanitizer gets through.
TEST(LinearCudaFp8, FewBlocksOfEveryTileGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles(
      device, 130,
      {{200, 2064, EndKind::kAdd, kF32}, {200, 528, EndKind::kStore, kF32}, {400, 272, EndKind::kSwiGlu, kBF16}});
}

// As for bf16 (linear_cuda_test.cc).
TEST(LinearCudaFp8, BiasIsAddedToTheSum) {
  FP8_DEVICE_OR_SKIP(device);
  const int64_t rows = 130;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 528}, {200, 2064}, {2880, 4096}}) {
    const LinearWeight w = pack(device, normal_values(n * k, 11), k, LinearLayout::kPlain);
    const std::vector<float> before = normal_values(rows * n, 6), bias = normal_values(n, 7);
    const DeviceTensor bias_device(device, bias);
    const TensorView bias_view = bias_device.view(kF32, {n});
    const TestInput x(device, normal_values(rows * k, 3), k);
    const std::vector<float> sums = decode(run(device, w, {n, k, EndKind::kStore, kF32}, x, 0, rows), kF32);
    for (EndKind kind : {EndKind::kStore, EndKind::kAdd}) {
      const Case c = {n, k, kind, kF32};
      std::vector<float> want = sums;
      for (int64_t i = 0; i < rows * n; ++i) {
        want[i] += bias[i % n];
        if (kind == EndKind::kAdd) want[i] += before[i];
      }
      ASSERT_EQ(decode(run(device, w, c, x, 0, rows, before, nullptr, bias_view), kF32), want);
      LinearCudaPlan plan = LinearCudaPlan::make_biased(w, rows);
      for (const LinearTile& tile : LinearCudaPlan::bias_tiles()) {
        plan.tile = tile;
        plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
        ASSERT_EQ(decode(run(device, w, c, x, 0, rows, before, &plan, bias_view), kF32), want) << tile.rows;
      }
    }
  }
}

// Plain rows become codes on the way, as the quantiser makes them.
TEST(LinearCudaFp8, PlainRowsAreQuantisedFirst) {
  FP8_DEVICE_OR_SKIP(device);
  const Case c = {200, 528, EndKind::kStore, kF32};
  const int64_t rows = 19;
  const std::vector<float> values = normal_values(rows * c.k, 3);
  const LinearWeight w = pack(device, normal_values(c.n * c.k, 11), c.k, LinearLayout::kPlain);
  const DeviceTensor plain(device, values), y(device, rows * c.n * 4);
  Arena scratch(std::move(device.allocate(arena_bytes(rows * c.k) + arena_bytes(rows * 4))).value());
  linear(device.stream(), w, plain.view(kF32, {rows, c.k}), y.view(kF32, {rows, c.n}), {}, scratch);
  EXPECT_EQ(y.read<char>(), run(device, w, c, TestInput(device, values, c.k), 0, rows));
  EXPECT_EQ(scratch.mark(), 0u);
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

// The split is part of the arithmetic and does not move with the rows.
TEST(LinearCudaFp8Plan, SplitDoesNotDependOnTheRows) {
  for (int64_t n : {64, 4096, 6144, 151936}) {
    const int split = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, 1, kF8).split;
    for (int64_t rows = 2; rows <= 600; ++rows) {
      const LinearCudaPlan plan = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, rows, kF8);
      ASSERT_EQ(plan.split, split);
      ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
    }
  }
}

}  // namespace
}  // namespace volley::ops
