// Protects: values against an fp64 oracle, for gates of columns and of rows.
#include "ops/sigmoid_gate/sigmoid_gate_testing.h"

namespace volley::ops {
namespace {

TEST(SigmoidGate, MatchesOracle) {
  const auto device = *make_cpu_device(3);
  check_all_gates(*device);
  sigmoid_gate(device->stream(), TensorView(nullptr, DType::kF32, {0, 16}), TensorView(nullptr, DType::kF32, {0, 16}));
}

}  // namespace
}  // namespace volley::ops
