#include "ops/linear/linear.h"

#include <string>

#include "ops/linear/linear_kernels.h"

namespace volley::ops {

Result<LinearWeight> pack_linear(Device& device, std::span<const WeightRows> parts, int64_t k, DType storage,
                                 LinearLayout layout) {
  if (k < 1) return invalid_argument("A weight matrix needs at least one column, not " + std::to_string(k) + ".");
  const bool fp8 = storage == DType::kF8E4M3 && device.kind() == DeviceKind::kCuda;
  if (storage != DType::kBF16 && storage != DType::kF32 && !fp8) {
    return unimplemented(std::string("Weights cannot be stored as ") + dtype_name(storage) +
                         " on this device: use bfloat16 or float32.");
  }
  for (const WeightRows& part : parts) {
    if (part.dtype != DType::kBF16 && part.dtype != DType::kF16 && part.dtype != DType::kF32) {
      return invalid_argument(std::string("A weight matrix of type ") + dtype_name(part.dtype) +
                              " cannot be loaded: convert it to bfloat16, float16 or float32.");
    }
    VOLLEY_CHECK_GE(part.rows, 0);
  }
  if (layout == LinearLayout::kGateUp && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
    return invalid_argument("Gate and up projections must be two matrices with the same number of rows.");
  }
  return kernels_on<LinearKernels>(device.kind()).pack_linear(device, parts, k, storage, layout);
}

int64_t packed_bytes(DeviceKind device, int64_t n, int64_t k, DType storage, LinearLayout layout) {
  return kernels_on<LinearKernels>(device).packed_bytes(n, k, storage, layout);
}

bool linear_takes_fp8(DeviceKind device, const GpuInfo& gpu) {
  const auto takes_fp8 = kernels_on<LinearKernels>(device).takes_fp8;
  return takes_fp8 != nullptr && takes_fp8(gpu);
}

namespace {

bool fit(const LinearWeight& w, const ScaledRows& x) {
  if (w.storage == DType::kF8E4M3 || x.values.dtype == DType::kF8E4M3) {
    return w.storage == x.values.dtype && x.scales.dtype == DType::kF32 && x.scales.rank == 1 &&
           x.scales.shape[0] == x.values.shape[0];
  }
  return x.values.dtype == DType::kF32 || x.values.dtype == DType::kBF16;
}

}  // namespace

bool linear_summarises(const Stream& stream, const LinearWeight& w, DType x) {
  const auto summarises = kernels_on<LinearKernels>(stream).summarises;
  return summarises != nullptr && summarises(stream.gpu(), w, x);
}

void linear(Stream& stream, const LinearWeight& w, ScaledRows x, TensorView y, Epilogue epilogue,
            const RowSummaries& summaries) {
  const int64_t columns = epilogue == Epilogue::kSwiGlu ? w.n / 2 : w.n;
  VOLLEY_CHECK(x.values.rank == 2 && y.rank == 2);
  VOLLEY_CHECK_EQ(x.values.shape[1], w.k);
  VOLLEY_CHECK_EQ(y.shape[0], x.values.shape[0]);
  VOLLEY_CHECK_EQ(y.shape[1], columns);
  VOLLEY_CHECK(fit(w, x));
  VOLLEY_CHECK(y.dtype == DType::kF32 || (y.dtype == DType::kBF16 && epilogue != Epilogue::kAdd));
  VOLLEY_CHECK((epilogue == Epilogue::kSwiGlu) == (w.layout == LinearLayout::kGateUp));
  VOLLEY_CHECK(summaries.whole == nullptr || (epilogue == Epilogue::kStore && y.dtype == DType::kF32 &&
                                              linear_summarises(stream, w, x.values.dtype)));
  if (y.shape[0] == 0 || w.n == 0) return;
  kernels_on<LinearKernels>(stream).linear(stream, w, x, y, epilogue, summaries);
}

ScaledRows input_for(const LinearWeight& w, DType activation, int64_t rows, Arena& scratch) {
  return take_rows(scratch, w.storage == DType::kF8E4M3 ? w.storage : activation, rows, w.k);
}

void product(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue, Arena& scratch) {
  if (w.storage != DType::kF8E4M3) return linear(stream, w, x, y, epilogue);
  ArenaScope scope(scratch);
  const ScaledRows codes = take_rows(scratch, DType::kF8E4M3, x.shape[0], w.k);
  quantise_rows(stream, x, codes);
  linear(stream, w, codes, y, epilogue);
}

}  // namespace volley::ops
