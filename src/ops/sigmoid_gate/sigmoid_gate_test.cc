// Protects: values against an fp64 oracle, for gates of columns and of rows.
#include "ops/sigmoid_gate/sigmoid_gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

void check_values(int64_t rows, int64_t n, int64_t m, int64_t first, DType dtype) {
  auto device = *make_cpu_device(3);
  std::vector<float> y = normal_values(rows * n, 1), gates = normal_values(rows * m, 2);
  for (float& x : y) x = to_float(to_bfloat16(x));
  std::vector<float> got = y;
  std::vector<BFloat16> halves;
  for (const float x : y) halves.push_back(to_bfloat16(x));
  const bool f32 = dtype == DType::kF32;
  sigmoid_gate(device->stream(), TensorView(f32 ? static_cast<void*>(got.data()) : halves.data(), dtype, {rows, n}),
               TensorView(gates.data(), DType::kF32, {rows, m}), first);
  for (int64_t i = 0; i < rows * n; ++i) {
    const double gate = gates[i / n * m + (m == 1 ? 0 : first + i % n)];
    const double want = y[i] / (1 + std::exp(-gate));
    // The exponential, the sum, the quotient and the product round once each.
    const double bound = std::fabs(want) * (f32 ? 4 * 0x1p-24 : 0x1p-8);
    ASSERT_NEAR(f32 ? got[i] : to_float(halves[i]), want, bound) << n << " of " << m << ", element " << i;
  }
}

TEST(SigmoidGate, MatchesOracle) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_values(5, 32, 96, 64, dtype);
    check_values(300, 48, 48, 0, dtype);
    check_values(7, 33, 1, 0, dtype);
    check_values(1, 1, 1, 0, dtype);
    check_values(0, 16, 16, 0, dtype);
  }
}

}  // namespace
}  // namespace volley::ops
