// Shared by the CUDA files of this folder. Private to it.
#pragma once

#include "device/cuda/launch.h"
#include "ops/gated_delta/gated_delta_phases.h"

namespace volley::ops::delta {

inline constexpr unsigned kAllLanes = 0xffffffff;

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

// q and k of the prepared rows, a warp a row.
template <int kQuads>
__device__ inline void norm_rows(const Call& call, int rows, const Shared& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  for (int at = static_cast<int>(threadIdx.x) / kWarp; at < rows; at += warps) {
    RowPart<kQuads> part;
    RowSums sums = read_row(s, at, lane, part);
    sums = {warp_sum(sums.qq), warp_sum(sums.kk), warp_sum(sums.qk)};
    scale_row(call, at, sums, lane, part, s);
  }
}

// Segments of more than call.long_rows rows, which gated_delta_kernel leaves alone.
void gated_delta_long_cuda(Stream& stream, const Call& call, DType dtype, int32_t max_segment_rows, Arena& scratch);

}  // namespace volley::ops::delta
