#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/wide_norm/wide_norm_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct NormArgs {
  float* x;
  int64_t stride;  // from one row of x to the next
  float* sums;
  int64_t first[WideNorm::kParts];
  int width[WideNorm::kParts];
  const float* weight[WideNorm::kParts];
  float eps;
  int ranks;

  __device__ float* part(int64_t row, int p) const { return x + row * stride + first[p]; }
};

// A block a part of a row: a chain a thread, whose sums are added as a tree.
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ NormArgs args) {
  __shared__ float sums[kWarps];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const int p = blockIdx.y, lane = threadIdx.x % 32;
  const float* x = args.part(row, p);
  float sum = 0;
  for (int i = threadIdx.x; i < args.width[p]; i += kThreads) sum = fmaf(x[i], x[i], sum);
#pragma unroll
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
  if (lane == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp];
  args.sums[row * WideNorm::kSums + p] = sum;
  args.sums[row * WideNorm::kSums + p + WideNorm::kParts] = 0;
}

__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ NormArgs args) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const int p = blockIdx.y;
  float* x = args.part(row, p);
  const float all = static_cast<float>(int64_t{args.width[p]} * args.ranks);
  const float scale = 1.0f / sqrtf(args.sums[row * WideNorm::kSums + p] / all + args.eps);
  for (int i = threadIdx.x; i < args.width[p]; i += kThreads) x[i] = x[i] * scale * args.weight[p][i];
}

void launch(Stream& stream, const WideNorm& norm, int ranks, void (*kernel)(NormArgs)) {
  NormArgs args = {};
  args.x = norm.x.as<float>();
  args.stride = norm.x.dim(1);
  args.sums = norm.sums.as<float>();
  for (int p = 0; p < WideNorm::kParts; ++p) {
    args.first[p] = norm.parts[p].first;
    args.width[p] = static_cast<int>(norm.parts[p].weight.count());
    args.weight[p] = norm.parts[p].weight.as<float>();
  }
  args.eps = norm.eps;
  args.ranks = ranks;
  cuda::launch(kernel, {.grid = cuda::dims(norm.x.dim(0), WideNorm::kParts), .block = dim3(kThreads), .early = true},
               stream, args);
}

void sum_squares_cuda(Stream& stream, const WideNorm& norm) {
  launch(stream, norm, 1, sum_kernel);
}

void norm_by_sums_cuda(Stream& stream, const WideNorm& norm, int ranks) {
  launch(stream, norm, ranks, norm_kernel);
}

}  // namespace

const WideNormKernels WideNormKernels::kCuda = {sum_squares_cuda, norm_by_sums_cuda};

}  // namespace volley::ops
