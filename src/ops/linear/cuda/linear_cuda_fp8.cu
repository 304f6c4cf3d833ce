// From rows of a checkpoint to packed FP8 weights, once at loading.
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// Where a code of a packed row lies in its panel.
__device__ int64_t code_index(int64_t row_of_panel, int64_t i) {
  constexpr int64_t kColumns = linear_cuda_block_k(DType::kF8E4M3);
  const int64_t piece = i % kColumns / 16;
  return i / kColumns * kBlockBytes + row_of_panel * kColumns + (piece ^ (row_of_panel % 8)) * 16 + i % 16;
}
__device__ int64_t panel_at(int64_t row, int64_t k) {
  constexpr int64_t kColumns = linear_cuda_block_k(DType::kF8E4M3);
  return row / kPanelRows * ((k + kColumns - 1) / kColumns) * kBlockBytes;
}

// Copies existing codes, a block per row, with one scale a row or one for each block of columns; of the `sharing`
// outputs that share scales, the first one writes them.
__global__ void __launch_bounds__(kThreads)
    store_fp8_kernel(const float* raw_scales, int64_t first_row, int64_t n, int64_t k, LinearLayout layout,
                     int64_t blocks, int64_t sharing, uint8_t* packed, float* scales) {
  const auto* codes = reinterpret_cast<const uint8_t*>(raw_scales + gridDim.x * blocks) + blockIdx.x * k;
  const int64_t row = packed_row(first_row + blockIdx.x, n, layout), r = row % kPanelRows;
  if (row % sharing == 0) {
    for (int64_t i = threadIdx.x; i < blocks; i += kThreads) {
      scales[row / sharing * blocks + i] = raw_scales[blockIdx.x * blocks + i];
    }
  }
  uint8_t* panel = packed + panel_at(row, k);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) panel[code_index(r, i)] = codes[i];
}

// A block per row.
__global__ void __launch_bounds__(kThreads)
    pack_fp8_kernel(const void* raw, DType dtype, int64_t first_row, int64_t n, int64_t k, LinearLayout layout,
                    uint8_t* packed, float* scales) {
  const int64_t from = blockIdx.x * k, row = packed_row(first_row + blockIdx.x, n, layout), r = row % kPanelRows;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    largest = max(largest, magnitude_bits(cuda::load_float(raw, dtype, from + i)));
  }
  const float scale = code_scale(block_largest<kThreads>(largest)), inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  uint8_t* panel = packed + panel_at(row, k);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    panel[code_index(r, i)] = code(cuda::load_float(raw, dtype, from + i), inverse);
  }
}

}  // namespace

void pack_fp8_rows_cuda(Stream& stream, const void* raw, DType dtype, int64_t first_row, int64_t rows,
                        const LinearWeight& w) {
  cuda::launch(pack_fp8_kernel, {.grid = cuda::dims(rows), .block = dim3(kThreads)}, stream, raw, dtype, first_row, w.n,
               w.k, w.layout, static_cast<uint8_t*>(w.packed.data()), linear_cuda_scales(w));
}

void store_fp8_rows_cuda(Stream& stream, const void* raw, int64_t first_row, int64_t rows, const LinearWeight& w) {
  const int64_t blocks = w.format.in_blocks() ? linear_cuda_k_blocks(w.k, w.format.code) : 1;
  const int64_t sharing = w.format.group_n;
  cuda::launch(store_fp8_kernel, {.grid = cuda::dims(rows), .block = dim3(kThreads)}, stream,
               static_cast<const float*>(raw), first_row, w.n, w.k, w.layout, blocks, sharing,
               static_cast<uint8_t*>(w.packed.data()), linear_cuda_scales(w));
}

}  // namespace volley::ops
