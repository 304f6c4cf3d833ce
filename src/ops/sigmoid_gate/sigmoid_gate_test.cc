// Protects, on the CPU and on a GPU: values against an fp64 oracle, for gates of columns and of rows.
#include "ops/sigmoid_gate/sigmoid_gate.h"

#include <cmath>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

// Against an fp64 oracle.
void check_gates(Device& device, int64_t rows, int64_t n, int64_t m, int64_t first, DType dtype) {
  std::vector<float> y = normal_values(rows * n, 1), gates = normal_values(rows * m, 2);
  std::vector<BFloat16> halves;
  for (float& x : y) x = to_float(halves.emplace_back(to_bfloat16(x)));
  const bool f32 = dtype == DType::kF32;
  const DeviceTensor on_device = f32 ? DeviceTensor(device, y) : DeviceTensor(device, halves);
  const DeviceTensor gates_on_device(device, gates);
  sigmoid_gate(device.stream(), on_device.view(dtype, {rows, n}), gates_on_device.view(DType::kF32, {rows, m}), first);
  std::vector<float> got;
  if (f32) {
    got = on_device.read<float>();
  } else {
    for (const BFloat16 x : on_device.read<BFloat16>()) got.push_back(to_float(x));
  }
  for (int64_t i = 0; i < rows * n; ++i) {
    const double gate = gates[i / n * m + (m == 1 ? 0 : first + i % n)];
    const double want = y[i] / (1 + std::exp(-gate));
    // The exponential, the sum, the quotient and the product round once each.
    const double bound = std::fabs(want) * (f32 ? 4 * 0x1p-24 : 0x1p-8);
    ASSERT_NEAR(got[i], want, bound) << n << " of " << m << ", element " << i;
  }
}

// Gates of columns and of rows; whole vectors and others.
DEVICE_TEST(SigmoidGate, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_gates(device, 5, 32, 96, 64, dtype);
    check_gates(device, 300, 48, 48, 0, dtype);
    check_gates(device, 3, 32, 97, 65, dtype);
    check_gates(device, 7, 33, 1, 0, dtype);
    check_gates(device, 40, 64, 1, 0, dtype);
    check_gates(device, 1, 1, 1, 0, dtype);
  }
  sigmoid_gate(device.stream(), TensorView(nullptr, DType::kF32, {0, 16}), TensorView(nullptr, DType::kF32, {0, 16}));
}

}  // namespace
}  // namespace volley::ops
