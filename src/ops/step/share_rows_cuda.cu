// share_verify_rows() on CUDA: one block looks at all drafted tokens of a step. The last of the likeliest is found bit
// by bit: survival is not negative, so its bits order as it does.
#include "device/cuda/block_sum.cuh"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/step/step_kernels.h"
#include "ops/step/step_rule.h"

namespace volley::ops {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kSurvivalBits = 30;  // bits of a float in [0, 1]: the two highest are never set

// Survival of the drafted tokens, as [position][segment], which is the order in which equals win. 0: no candidate.
struct Candidates {
  uint32_t* keys;
  int positions, segments;
};

__device__ int sum_over_block(int mine) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const int warp_sum = __reduce_add_sync(0xffffffff, mine);
  if (threadIdx.x % 32 == 0 && warp_sum != 0) atomicAdd(&total, warp_sum);
  __syncthreads();
  const int sum = total;
  __syncthreads();
  return sum;
}

template <typename Test>
__device__ int count_if(const uint32_t* keys, int n, const Test& test) {
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) mine += test(keys[i]) ? 1 : 0;
  return sum_over_block(mine);
}

// The largest key that at least `wanted` candidates reach; 1 where there are no more than that.
__device__ uint32_t threshold_of(const Candidates& all, int wanted) {
  const int n = all.positions * all.segments;
  if (count_if(all.keys, n, [](uint32_t key) { return key >= 1; }) <= wanted) return 1;
  uint32_t threshold = 0;
  for (int bit = kSurvivalBits - 1; bit >= 0; --bit) {
    const uint32_t higher = threshold | (1u << bit);
    if (count_if(all.keys, n, [&](uint32_t key) { return key >= higher; }) >= wanted) threshold = higher;
  }
  return threshold;
}

// verified[s]: how many candidates of segment s are among the `wanted` likeliest.
__device__ void count_likeliest(const Candidates& all, int wanted, int* verified) {
  const int n = all.positions * all.segments;
  const uint32_t threshold = threshold_of(all, wanted);
  for (int s = threadIdx.x; s < all.segments; s += blockDim.x) {
    verified[s] = 0;
    for (int j = 0; j < all.positions; ++j) verified[s] += all.keys[j * all.segments + s] > threshold ? 1 : 0;
  }
  int left = wanted - count_if(all.keys, n, [&](uint32_t key) { return key > threshold; });
  for (int j = 0; j < all.positions && left > 0; ++j) {
    const uint32_t* keys = all.keys + j * all.segments;
    const int ties = count_if(keys, all.segments, [&](uint32_t key) { return key == threshold; });
    for (int s = threadIdx.x; s < all.segments; s += blockDim.x) {
      if (keys[s] != threshold) continue;
      int before = 0;
      for (int i = 0; i < s && ties > left; ++i) before += keys[i] == threshold ? 1 : 0;
      if (before < left) ++verified[s];
    }
    left -= min(left, ties);
  }
  __syncthreads();
}

// One warp gives the segments their rows, 32 at a time.
__device__ void place_segments(StepSegment* segments, const int* verified, const SharePlan& plan) {
  if (threadIdx.x >= 32) return;
  int row = 0;
  for (int begin = 0; begin < plan.decoding; begin += 32) {
    const int s = begin + static_cast<int>(threadIdx.x);
    const int rows = s < plan.decoding ? segments[s].known + verified[s] : 0;
    const int after = cuda::warp_sum_through(rows);
    const bool last = s + 1 == plan.decoding;
    if (s < plan.decoding) {
      step::place_segment(segments[s], row + after - rows, verified[s], last ? plan.rows - row - after : 0);
    }
    row += __shfl_sync(0xffffffff, after, 31);
  }
}

// keys[j][s]: survival of the drafted token j of segment s. First each thread computes a token's chance of acceptance,
// then the products along each block.
__device__ void fill_candidates(const Step& step, const StepSegment* segments, const SharePlan& plan,
                                const Candidates& all) {
  const int n = all.positions * all.segments;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const int s = i % all.segments, j = i / all.segments;
    const StepSegment& segment = segments[s];
    float chance = 0;
    if (j < segment.draft) {
      const float confidence = step::draft_confidence(segment, plan, j);
      if (plan.reported != nullptr) plan.reported[s * plan.stride + j] = confidence;
      chance = acceptance_chance(*plan.table, j, confidence, segment.shift);
    }
    all.keys[i] = __float_as_uint(chance);
  }
  __syncthreads();
  for (int s = threadIdx.x; s < all.segments; s += blockDim.x) {
    const int drafted = step.slots[segments[s].slot].done == 0 ? segments[s].draft : 0;
    float survival = 1;
    for (int j = 0; j < all.positions; ++j) {
      uint32_t& key = all.keys[j * all.segments + s];
      survival *= __uint_as_float(key);
      key = j < drafted ? max(1u, __float_as_uint(survival)) : 0;
    }
  }
  __syncthreads();
}

__global__ void report_kernel(const StepSegment* segments, SharePlan plan) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), s = i / plan.stride, j = i % plan.stride;
  if (s < plan.decoding && j < segments[s].draft) plan.reported[i] = step::draft_confidence(segments[s], plan, j);
}

__global__ void __launch_bounds__(kMostThreads) share_kernel(Step step, StepSegment* segments, SharePlan plan) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  extern __shared__ uint32_t shared[];
  int* const verified = reinterpret_cast<int*>(shared);
  const Candidates all{shared + plan.decoding, plan.stride, plan.decoding};
  fill_candidates(step, segments, plan, all);
  int known = 0;
  for (int s = threadIdx.x; s < plan.decoding; s += blockDim.x) known += segments[s].known;
  count_likeliest(all, plan.rows - sum_over_block(known), verified);
  place_segments(segments, verified, plan);
}

void share_verify_rows_cuda(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan) {
  const int tokens = plan.decoding * plan.stride;
  cuda::Launch how;
  how.early = true;
  if (plan.rows == SharePlan::kAll) {
    if (plan.reported == nullptr || tokens == 0) return;
    how.block = dim3(128);
    how.grid = dim3(static_cast<unsigned>((tokens + 127) / 128));
    return cuda::launch(report_kernel, how, stream, segments, plan);
  }
  how.grid = dim3(1);
  how.block = dim3(static_cast<unsigned>(tokens < kMostThreads ? (tokens + 31) / 32 * 32 : kMostThreads));
  how.shared_bytes = static_cast<size_t>(tokens + plan.decoding) * sizeof(uint32_t);
  cuda::launch(share_kernel, how, stream, step, segments, plan);
}

}  // namespace

const ShareKernels ShareKernels::kCuda = {share_verify_rows_cuda};

}  // namespace volley::ops
