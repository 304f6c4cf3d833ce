// What tests of FP8 products on a GPU share: cases, what comes back, and the oracle of sums of codes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/device_for_test.h"
#include "ops/linear/linear_cuda.h"
#include "ops/values_for_test.h"

namespace volley::ops {

// Addends of one step of the matrix unit lie on a grid of 2^-13 of the largest of them: what is finer is cut off.
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

}  // namespace volley::ops
