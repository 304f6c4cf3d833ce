// The portable kernel on weights in bf16.
#include "ops/linear/cuda/linear_cuda_portable.cuh"

namespace volley::ops {
namespace {

struct Values {
  static constexpr int kMostStages = 4;
  static constexpr int stage_bytes(int rows) { return rows * 128; }

  const uint8_t* packed = nullptr;

  template <typename Shape>
  __device__ void fill(uint32_t stage, int thread, int64_t block, int row) const {
    const uint8_t* from = packed + block * kBlockBytes + row * 128;
#pragma unroll
    for (int i = thread; i < Shape::kWeightBytes / 16; i += Shape::kTeamThreads) {
      fragments::copy16(stage + i * 16, from + i * 16, 16);
    }
  }

  template <typename Shape>
  __device__ void multiply(uint32_t stage, float (&sums)[Shape::kRows / 8][4]) const {
    const int warp = threadIdx.x / 32 % Shape::kWarps;
    fragments::multiply64(sums, stage, warp * 16, stage + Shape::kWeightBytes);
  }
};

}  // namespace

void linear_portable_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end) {
  multiply_portably(stream, Values{static_cast<const uint8_t*>(w.packed.data())}, w, x, y, end);
}

}  // namespace volley::ops
