// Shared by the tests of FP8 products on a GPU: cases, products, the oracle of sums of codes, and the tests of values
// and bits that hold for any scaling of codes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ops/device_for_test.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/quantise/quantise_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {

// Addends of one step of the matrix unit lie on a grid of 2^-13 of the largest of them: finer bits are cut off.
inline constexpr double kGrid = 0x1p-13;

#define FP8_DEVICE_OR_SKIP(device)    \
  VOLLEY_CUDA_DEVICE_OR_SKIP(device); \
  if (!linear_cuda_takes_fp8(device.stream().gpu())) GTEST_SKIP() << "needs sm_90a"

struct Fp8Case {
  int64_t n, k;
  EndKind kind;
  DType y;

  int64_t outputs() const { return kind == EndKind::kSwiGlu ? n / 2 : n; }
};

inline LinearLayout layout_of(EndKind kind) {
  return kind == EndKind::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kPlain;
}

// The plan for these rows, once with each tile.
template <typename Check>
void for_tiles(const Fp8Case& c, const WeightFormat& format, int64_t rows, const Check& check) {
  LinearCudaPlan plan = LinearCudaPlan::make(c.n, c.k, layout_of(c.kind), rows, format);
  for (const LinearTile& tile : LinearCudaPlan::tiles(layout_of(c.kind), plan.split, format)) {
    plan.tile = tile;
    plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
    SCOPED_TRACE(testing::Message() << tile.halves << " x " << tile.rows << (tile.shared ? " shared" : "") << ", n "
                                    << c.n << " k " << c.k << " rows " << rows << " split " << plan.split);
    check(plan);
    if (testing::Test::HasFatalFailure()) return;
  }
}

struct Sum {
  double value = 0, bound = 0;
};

// The sum of n products of codes. Each step of 32 products and the sum so far is on the grid of the largest of these.
inline Sum sum_of_codes(const float* w, const float* x, int64_t n) {
  Sum sum;
  for (int64_t i = 0; i < n; i += 32) {
    double largest = std::fabs(sum.value);
    for (int64_t j = i; j < std::min(i + 32, n); ++j) {
      const double product = double{w[j]} * x[j];
      sum.value += product;
      largest = std::max(largest, std::fabs(product));
    }
    sum.bound += 33 * kGrid * std::max(largest, std::fabs(sum.value));
  }
  return sum;
}

inline double silu(double x) {
  return x / (1 + std::exp(-x));
}

// silu(gate) * up, with the bound that those of both give.
inline Sum swiglu_of(const Sum& gate, const Sum& up) {
  const double bound = 1.1 * gate.bound * (std::fabs(up.value) + up.bound);
  return {silu(gate.value) * up.value, bound + std::fabs(silu(gate.value)) * up.bound};
}

// Scales of rows of x: one a row, or one for each of its groups, where rows fill up to a multiple of 4.
inline int64_t fp8_scales(const WeightFormat& format, int64_t rows, int64_t k) {
  return format.in_blocks() ? (k + kScaleGroup - 1) / kScaleGroup * ((rows + 3) / 4 * 4) : rows;
}

// Rows of x as codes on the device, as products with weights of a format take them.
class Fp8Input {
 public:
  Fp8Input(Device& device, const std::vector<float>& x, int64_t k, const WeightFormat& format)
      : k_(k),
        rows_(static_cast<int64_t>(x.size()) / k),
        in_blocks_(format.in_blocks()),
        scale_count_(fp8_scales(format, rows_, k)),
        codes_(device, x.size()),
        scales_(device, static_cast<size_t>(scale_count_) * sizeof(float)) {
    const DeviceTensor values(device, x);
    quantise_rows(device.stream(), values.view(DType::kF32, {rows_, k}), view());
    device.synchronize();
  }
  Input view() const {
    const int64_t stride = (rows_ + 3) / 4 * 4;
    return {codes_.view(DType::kF8E4M3, {rows_, k_}), in_blocks_
                                                          ? scales_.view(DType::kF32, {scale_count_ / stride, stride})
                                                          : scales_.view(DType::kF32, {rows_})};
  }

 private:
  int64_t k_, rows_;
  bool in_blocks_;
  int64_t scale_count_;
  DeviceTensor codes_, scales_;
};

// y of `count` rows of x from `begin` on; y starts as the same rows of `before` where it is added to.
inline std::vector<char> run_fp8(Device& device, const LinearWeight& w, const Fp8Case& c, const std::vector<float>& x,
                                 int64_t begin, int64_t count, const std::vector<float>& before = {},
                                 const LinearCudaPlan* plan = nullptr, TensorView bias = {}) {
  const int64_t outputs = c.outputs(), end_row = begin + count;
  const Fp8Input in(device, {&x[begin * c.k], &x[end_row * c.k]}, c.k, w.format);
  const DeviceTensor out =
      c.kind == EndKind::kAdd
          ? DeviceTensor(device, std::vector<float>(&before[begin * outputs], &before[end_row * outputs]))
          : DeviceTensor(device, static_cast<size_t>(count * outputs) * dtype_size(c.y));
  const TensorView y = out.view(c.y, {count, outputs});
  const End end = {c.kind, bias};
  if (plan != nullptr) {
    linear_tiles_cuda(device.stream(), w, in.view(), y, end, *plan);
  } else {
    Arena none{Buffer()};
    linear(device.stream(), w, in.view(), y, end, none);
  }
  return out.read<char>();
}

// One and two slices of k, and ends that no tile divides.
inline constexpr Fp8Case kExactCases[] = {
    {200, 80, EndKind::kStore, DType::kF32},    {1000, 528, EndKind::kStore, DType::kF32},
    {332, 2064, EndKind::kStore, DType::kF32},  {332, 2064, EndKind::kAdd, DType::kF32},
    {2000, 4352, EndKind::kStore, DType::kF32}, {9000, 272, EndKind::kAdd, DType::kF32}};

// Checks y, in fp32, of up to 300 rows of x, with every tile.
inline void expect_exact(Device& device, const Fp8Case& c, const LinearWeight& w, const std::vector<float>& x,
                         const std::vector<float>& before, const std::vector<float>& want) {
  for (int64_t rows : {1, 9, 130, 300}) {
    for_tiles(c, w.format, rows, [&](const LinearCudaPlan& plan) {
      const std::vector<float> y = decode(run_fp8(device, w, c, x, 0, rows, before, &plan), DType::kF32);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(y[i], want[i]) << "row " << i / c.n << " output " << i % c.n;
      }
    });
  }
}

// The split is part of the arithmetic and does not move with the rows. check(plan): what else holds of each plan.
template <typename Check>
void expect_split_kept(const WeightFormat& format, std::initializer_list<int64_t> outputs, const Check& check) {
  for (int64_t n : outputs) {
    const int split = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, 1, format).split;
    for (int64_t rows = 1; rows <= 600; ++rows) {
      const LinearCudaPlan plan = LinearCudaPlan::make(n, 4096, LinearLayout::kPlain, rows, format);
      ASSERT_EQ(plan.split, split);
      ASSERT_GE(plan.tile.rows * plan.row_tiles, rows);
      check(plan);
    }
  }
}

// Tests of weights of one format, which are made of a case and a seed: kFormat; pack(device); Row(x, k), a row as the
// quantiser makes it; oracle(output, Row); inputs(rows, k), values whose scales differ as much as the format allows.
template <typename Weights>
class Fp8Products : public testing::Test {};
TYPED_TEST_SUITE_P(Fp8Products);

// Values of every output, or of some thousand; and that errors are small where bounds are wide.
template <typename Weights>
void check_values(Device& device, const Fp8Case& c, std::initializer_list<int64_t> batches) {
  const Weights from(c, 11);
  const LinearWeight w = from.pack(device);
  const int64_t most = std::max(batches), outputs = c.outputs();
  const std::vector<float> x = Weights::inputs(most, c.k), before = normal_values(most * outputs, 6);
  for (int64_t count : batches) {
    const std::vector<float> y = decode(run_fp8(device, w, c, x, 0, count, before), c.y);
    for (float v : y) ASSERT_FALSE(std::isnan(v)) << "an output was not written";
    double errors = 0, squares = 0, worst = 0;
    for (int64_t i = 0; i < count * outputs; i += 1 + c.k * count * outputs / (int64_t{1} << 22)) {
      const int64_t output = i % outputs;
      const typename Weights::Row row(&x[i / outputs * c.k], c.k);
      Sum want = from.oracle(output, row);
      if (c.kind == EndKind::kSwiGlu) want = swiglu_of(want, from.oracle(outputs + output, row));
      if (c.kind == EndKind::kAdd) want.value += before[i];
      want.bound += std::fabs(want.value) * (c.y == DType::kBF16 ? 0x1p-8 : 0x1p-22) + 0x1p-22;
      ASSERT_NEAR(y[i], want.value, want.bound) << "row " << i / outputs << " of " << count << " output " << output;
      errors += (y[i] - want.value) * (y[i] - want.value);
      squares += want.value * want.value;
      worst = std::max(worst, std::fabs(y[i] - want.value) / want.bound);
    }
    EXPECT_LT(std::sqrt(errors / squares), 2e-3 + (c.y == DType::kBF16 ? 0x1p-8 / 2 : 0));
    std::printf("n %d k %d rows %d: error %.2e of the result, at most %.3f of the bound\n", static_cast<int>(c.n),
                static_cast<int>(c.k), static_cast<int>(count), std::sqrt(errors / squares), worst);
  }
}

// Also tiles that the plan does not choose for these rows; and a row of NaN stays alone.
template <typename Weights>
void check_tiles(Device& device, int64_t rows, std::initializer_list<Fp8Case> cases) {
  for (const Fp8Case& c : cases) {
    const LinearWeight w = Weights(c, 11).pack(device);
    const std::vector<float> before = normal_values(rows * c.outputs(), 6);
    std::vector<float> x = normal_values(rows * c.k, 3);
    const std::vector<char> clean = run_fp8(device, w, c, x, 0, rows, before);
    x[3 * c.k + 5] = std::nanf("");
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for_tiles(c, w.format, rows, [&](const LinearCudaPlan& plan) {
      std::vector<char> y = run_fp8(device, w, c, x, 0, rows, before, &plan);
      const auto third = y.begin() + static_cast<int64_t>(3 * row_bytes);
      for (float v : decode({third, third + static_cast<int64_t>(row_bytes)}, c.y)) ASSERT_TRUE(std::isnan(v));
      std::copy_n(&clean[3 * row_bytes], row_bytes, third);
      ASSERT_EQ(std::memcmp(y.data(), clean.data(), y.size()), 0);
    });
  }
}

TYPED_TEST_P(Fp8Products, MatchesOracle) {
  FP8_DEVICE_OR_SKIP(device);
  const auto rows = {int64_t{1}, int64_t{16}, int64_t{65}, int64_t{192}, int64_t{300}, int64_t{512}};
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {200, 80}, {1000, 528}, {1984, 4096}}) {
    check_values<TypeParam>(device, {n, k, EndKind::kStore, DType::kF32}, rows);
    check_values<TypeParam>(device, {n, k, EndKind::kStore, DType::kBF16}, rows);
    check_values<TypeParam>(device, {n, k, EndKind::kAdd, DType::kF32}, rows);
    check_values<TypeParam>(device, {n, k, EndKind::kSwiGlu, DType::kBF16}, rows);
  }
}

TYPED_TEST_P(Fp8Products, RowsAreIndependent) {
  FP8_DEVICE_OR_SKIP(device);
  for (const Fp8Case& c : {Fp8Case{6144, 4096, EndKind::kStore, DType::kF32},
                           {4096, 4096, EndKind::kAdd, DType::kF32},
                           {24576, 512, EndKind::kSwiGlu, DType::kBF16},
                           {1000, 1040, EndKind::kStore, DType::kF32}}) {
    const LinearWeight w = TypeParam(c, 11).pack(device);
    const std::vector<float> before = normal_values(512 * c.outputs(), 6), x = normal_values(512 * c.k, 3);
    const size_t row_bytes = c.outputs() * dtype_size(c.y);
    for (int64_t row : {0, 7, 256, 511}) {
      const std::vector<char> want = run_fp8(device, w, c, x, row, 1, before);
      for (int64_t rows : {2, 13, 16, 32, 64, 96, 128, 192, 256, 400, 512}) {
        const int64_t begin = std::max<int64_t>(0, std::min(row - rows / 3, 512 - rows));
        const std::vector<char> y = run_fp8(device, w, c, x, begin, rows, before);
        ASSERT_EQ(std::memcmp(&y[(row - begin) * row_bytes], want.data(), row_bytes), 0)
            << "row " << row << " in a batch of " << rows << " from " << begin << ", n " << c.n << " k " << c.k;
      }
    }
  }
}

TYPED_TEST_P(Fp8Products, TilesGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles<TypeParam>(device, 200,
                         {{2000, 1040, EndKind::kStore, DType::kF32},
                          {2000, 2064, EndKind::kAdd, DType::kF32},
                          {2000, 2064, EndKind::kSwiGlu, DType::kBF16},
                          {24576, 256, EndKind::kSwiGlu, DType::kBF16}});
}

// As little work as reaches every tile, with one and two slices of k: what compute-sanitizer gets through.
TYPED_TEST_P(Fp8Products, FewBlocksOfEveryTileGiveTheSameBits) {
  FP8_DEVICE_OR_SKIP(device);
  check_tiles<TypeParam>(device, 130,
                         {{200, 2064, EndKind::kAdd, DType::kF32},
                          {200, 528, EndKind::kStore, DType::kF32},
                          {400, 272, EndKind::kSwiGlu, DType::kBF16}});
}

TYPED_TEST_P(Fp8Products, BiasIsAddedToTheSum) {
  FP8_DEVICE_OR_SKIP(device);
  const int64_t rows = 130;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 528}, {200, 2064}, {2880, 4096}}) {
    const Fp8Case plain = {n, k, EndKind::kStore, DType::kF32};
    const LinearWeight w = TypeParam(plain, 11).pack(device);
    const std::vector<float> before = normal_values(rows * n, 6), bias = normal_values(n, 7);
    const DeviceTensor bias_device(device, bias);
    const TensorView bias_view = bias_device.view(DType::kF32, {n});
    const std::vector<float> x = normal_values(rows * k, 3);
    const std::vector<float> sums = decode(run_fp8(device, w, plain, x, 0, rows), DType::kF32);
    for (EndKind kind : {EndKind::kStore, EndKind::kAdd}) {
      const Fp8Case c = {n, k, kind, DType::kF32};
      std::vector<float> want = sums;
      for (int64_t i = 0; i < rows * n; ++i) {
        want[i] += bias[i % n];
        if (kind == EndKind::kAdd) want[i] += before[i];
      }
      ASSERT_EQ(decode(run_fp8(device, w, c, x, 0, rows, before, nullptr, bias_view), DType::kF32), want);
      LinearCudaPlan plan = LinearCudaPlan::make_biased(w, rows);
      for (const LinearTile& tile : LinearCudaPlan::bias_tiles()) {
        plan.tile = tile;
        plan.row_tiles = (rows + tile.rows - 1) / tile.rows;
        ASSERT_EQ(decode(run_fp8(device, w, c, x, 0, rows, before, &plan, bias_view), DType::kF32), want) << tile.rows;
      }
    }
  }
}

// Plain rows become codes on the way, as the quantiser makes them.
TYPED_TEST_P(Fp8Products, PlainRowsAreQuantisedFirst) {
  FP8_DEVICE_OR_SKIP(device);
  const Fp8Case c = {200, 528, EndKind::kStore, DType::kF32};
  const int64_t rows = 19, room = arena_bytes(rows * c.k) + arena_bytes(fp8_scales(TypeParam::kFormat, rows, c.k) * 4);
  const std::vector<float> values = normal_values(rows * c.k, 3);
  const LinearWeight w = TypeParam(c, 11).pack(device);
  const DeviceTensor plain(device, values), y(device, rows * c.n * 4);
  Arena scratch(std::move(device.allocate(room)).value());
  linear(device.stream(), w, plain.view(DType::kF32, {rows, c.k}), y.view(DType::kF32, {rows, c.n}), {}, scratch);
  EXPECT_EQ(y.read<char>(), run_fp8(device, w, c, values, 0, rows));
  EXPECT_EQ(scratch.mark(), 0u);
}

REGISTER_TYPED_TEST_SUITE_P(Fp8Products, MatchesOracle, RowsAreIndependent, TilesGiveTheSameBits,
                            FewBlocksOfEveryTileGiveTheSameBits, BiasIsAddedToTheSum, PlainRowsAreQuantisedFirst);

}  // namespace volley::ops
