// From rows of a checkpoint to packed FP8 weights, once at loading.
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/linear/linear_cuda.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// A block per row.
__global__ void __launch_bounds__(kThreads)
    pack_fp8_kernel(const void* raw, DType dtype, int64_t first_row, int64_t n, int64_t k, LinearLayout layout,
                    uint8_t* packed, float* scales) {
  constexpr int64_t kColumns = linear_cuda_block_k(DType::kF8E4M3);
  const int64_t from = blockIdx.x * k, row = packed_row(first_row + blockIdx.x, n, layout), r = row % kPanelRows;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    largest = max(largest, magnitude_bits(cuda::load_float(raw, dtype, from + i)));
  }
  const float scale = code_scale(block_largest<kThreads>(largest)), inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  uint8_t* panel = packed + row / kPanelRows * ((k + kColumns - 1) / kColumns) * kBlockBytes;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t piece = i % kColumns / 16;
    panel[i / kColumns * kBlockBytes + r * kColumns + (piece ^ (r % 8)) * 16 + i % 16] =
        code(cuda::load_float(raw, dtype, from + i), inverse);
  }
}

}  // namespace

void pack_fp8_rows_cuda(Stream& stream, const void* raw, DType dtype, int64_t first_row, int64_t rows,
                        const LinearWeight& w) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(rows));
  how.block = dim3(kThreads);
  cuda::launch(pack_fp8_kernel, how, stream, raw, dtype, first_row, w.n, w.k, w.layout,
               static_cast<uint8_t*>(w.packed.data()), linear_cuda_scales(w));
}

}  // namespace volley::ops
