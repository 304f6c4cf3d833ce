// Protects, on a GPU: values against an fp64 oracle, for gates of columns and of rows.
#include "ops/sigmoid_gate/sigmoid_gate_testing.h"

namespace volley::ops {
namespace {

TEST(SigmoidGateCuda, MatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_all_gates(device);
}

}  // namespace
}  // namespace volley::ops
