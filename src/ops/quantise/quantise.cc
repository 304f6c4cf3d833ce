#include "ops/quantise/quantise.h"

#include "base/math.h"
#include "ops/quantise/quantise_kernels.h"

namespace volley::ops {

const QuantiseKernels QuantiseKernels::kCpu = {nullptr};

bool Input::has_scales() const {
  if (scales.dtype != DType::kF32) return false;
  if (scales.rank == 1) return scales.shape[0] == rows();
  return scales.rank == 2 && scales.shape[0] == divide_up(values.shape[1], kScaleGroup) &&
         scales.shape[1] == round_up(rows(), 4);
}

Input take_rows(Arena& scratch, DType dtype, int64_t rows, int64_t k, bool in_groups) {
  Input taken(scratch.take(dtype, {rows, k}));
  if (dtype != DType::kF8E4M3) return taken;
  taken.scales = in_groups ? scratch.take(DType::kF32, {divide_up(k, kScaleGroup), round_up(rows, 4)})
                           : scratch.take(DType::kF32, {rows});
  return taken;
}

void quantise_rows(Stream& stream, TensorView x, const Input& y) {
  VOLLEY_CHECK(x.rank == 2 && y.values.rank == 2);
  VOLLEY_CHECK(x.shape[0] == y.values.shape[0] && x.shape[1] == y.values.shape[1]);
  VOLLEY_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  VOLLEY_CHECK(y.values.dtype == DType::kF8E4M3 && y.has_scales());
  VOLLEY_CHECK_EQ(x.shape[1] % kQuantisedColumns, 0);
  if (x.shape[0] == 0) return;
  const QuantiseKernels& kernels = kernels_on<QuantiseKernels>(stream);
  VOLLEY_CHECK_MSG(kernels.quantise_rows != nullptr, "quantise_rows: it has no CPU kernel");
  kernels.quantise_rows(stream, x, y);
}

}  // namespace volley::ops
