#include "ops/sigmoid_gate/sigmoid_gate.h"

#include "ops/sigmoid_gate/sigmoid_gate_kernels.h"

namespace volley::ops {

void sigmoid_gate(Stream& stream, TensorView y, TensorView gates, int64_t first) {
  VOLLEY_CHECK(y.rank == 2 && gates.rank == 2 && (y.dtype == DType::kBF16 || y.dtype == DType::kF32));
  VOLLEY_CHECK(gates.dtype == DType::kF32 && gates.dim(0) == y.dim(0));
  VOLLEY_CHECK(gates.dim(1) == 1 ? first == 0 : first >= 0 && first + y.dim(1) <= gates.dim(1));
  if (y.count() == 0) return;
  kernels_on<SigmoidGateKernels>(stream).sigmoid_gate(stream, y, gates, first);
}

}  // namespace volley::ops
