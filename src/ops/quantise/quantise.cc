#include "ops/quantise/quantise.h"

#ifdef VOLLEY_CUDA
#include "ops/quantise/quantise_cuda.h"
#endif

namespace volley::ops {

Input take_rows(Arena& scratch, DType dtype, int64_t rows, int64_t k) {
  Input taken(scratch.take(dtype, {rows, k}));
  if (dtype == DType::kF8E4M3) taken.scales = scratch.take(DType::kF32, {rows});
  return taken;
}

void quantise_rows([[maybe_unused]] Stream& stream, TensorView x, const Input& y) {
  VOLLEY_CHECK(x.rank == 2 && y.values.rank == 2 && y.scales.rank == 1);
  VOLLEY_CHECK(x.shape[0] == y.values.shape[0] && x.shape[1] == y.values.shape[1]);
  VOLLEY_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  VOLLEY_CHECK(y.values.dtype == DType::kF8E4M3 && y.scales.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(y.scales.shape[0], x.shape[0]);
  VOLLEY_CHECK_EQ(x.shape[1] % kQuantisedColumns, 0);
  if (x.shape[0] == 0) return;
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return quantise_rows_cuda(stream, x, y);
#endif
  VOLLEY_CHECK_MSG(false, "quantise_rows: it has no CPU kernel");
}

}  // namespace volley::ops
