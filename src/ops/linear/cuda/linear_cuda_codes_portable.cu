// The portable kernel on weights in codes: warps widen their rows in registers instead of loading them.
#include "ops/linear/cuda/linear_cuda_portable.cuh"
#include "ops/linear/cuda/linear_cuda_widen.cuh"

namespace volley::ops {
namespace {

struct Codes {
  static constexpr int kMostStages = 8;
  static constexpr int stage_bytes(int rows) { return rows / 32 * most_half_bytes(true); }

  CodeKind kind;
  const uint8_t* packed = nullptr;

  template <typename Shape>
  __device__ void fill(uint32_t stage, int thread, int64_t block, int row) const {
    const int half_bytes = kind.half_bytes();
    const uint8_t* from = packed + (block * 2 + row / 32) * half_bytes;
    for (int i = thread; i < Shape::kWeightRows / 32 * half_bytes / 16; i += Shape::kTeamThreads) {
      fragments::copy16(stage + i * 16, from + i * 16, 16);
    }
  }

  template <typename Shape>
  __device__ void multiply(uint32_t stage, float (&sums)[Shape::kRows / 8][4]) const {
    const int warp = threadIdx.x / 32 % Shape::kWarps;
    uint32_t a[4][4];
    widen_half(kind, stage + warp / 2 * kind.half_bytes(), warp % 2, a);
#pragma unroll
    for (int k = 0; k < kBlockK / 16; k += 2) {
      fragments::multiply32(sums, a[k], a[k + 1], stage + Shape::kWeightBytes, k);
    }
  }
};

}  // namespace

void linear_codes_portable_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end) {
  multiply_portably(stream, Codes{CodeKind(w.format), static_cast<const uint8_t*>(w.packed.data())}, w, x, y, end);
}

}  // namespace volley::ops
