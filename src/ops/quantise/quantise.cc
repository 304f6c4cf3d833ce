#include "ops/quantise/quantise.h"

#include "ops/quantise/quantise_kernels.h"

namespace volley::ops {

const QuantiseKernels QuantiseKernels::kCpu = {nullptr};

Input take_rows(Arena& scratch, DType dtype, int64_t rows, int64_t k) {
  Input taken(scratch.take(dtype, {rows, k}));
  if (dtype == DType::kF8E4M3) taken.scales = scratch.take(DType::kF32, {rows});
  return taken;
}

void quantise_rows(Stream& stream, TensorView x, const Input& y) {
  VOLLEY_CHECK(x.rank == 2 && y.values.rank == 2 && y.scales.rank == 1);
  VOLLEY_CHECK(x.shape[0] == y.values.shape[0] && x.shape[1] == y.values.shape[1]);
  VOLLEY_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  VOLLEY_CHECK(y.values.dtype == DType::kF8E4M3 && y.scales.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(y.scales.shape[0], x.shape[0]);
  VOLLEY_CHECK_EQ(x.shape[1] % kQuantisedColumns, 0);
  if (x.shape[0] == 0) return;
  const QuantiseKernels& kernels = kernels_on<QuantiseKernels>(stream);
  VOLLEY_CHECK_MSG(kernels.quantise_rows != nullptr, "quantise_rows: it has no CPU kernel");
  kernels.quantise_rows(stream, x, y);
}

}  // namespace volley::ops
