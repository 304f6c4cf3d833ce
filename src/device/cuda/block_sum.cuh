// Sums over the threads of a block in their order, for whole numbers.
#pragma once

namespace volley::cuda {

// The sum of v over the threads before this one. All threads of a block of kWarps warps call it.
template <int kWarps>
__device__ inline int block_sum_before(int v) {
  __shared__ int sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = v;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffff, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();  // the sums of a call before may still be read
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int before = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) before += i < warp ? sums[i] : 0;
  return before + sum - v;
}

}  // namespace volley::cuda
