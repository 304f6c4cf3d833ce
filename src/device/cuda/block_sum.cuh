// Prefix sums of whole numbers over the threads of a warp or a block.
#pragma once

namespace volley::cuda {

// The sum of v over the lanes up to this one.
__device__ inline int warp_sum_through(int v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffff, v, d);
    if (lane >= d) v += other;
  }
  return v;
}

// The sum of v over the threads before this one. All threads of a block of kWarps warps call it.
template <int kWarps>
__device__ inline int block_sum_before(int v) {
  __shared__ int sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = warp_sum_through(v);
  __syncthreads();  // threads may still read the sums of the previous call
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int before = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) before += i < warp ? sums[i] : 0;
  return before + sum - v;
}

}  // namespace volley::cuda
