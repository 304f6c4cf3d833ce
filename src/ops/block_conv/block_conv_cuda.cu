#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/block_conv/block_conv_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// A thread a channel of a row.
__global__ void convolve_kernel(BlockConvArgs args, void* y, DType y_dtype, bool adds) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t ch = int64_t{blockIdx.y} * kThreads + threadIdx.x, row = blockIdx.x, n = args.channels;
  if (ch >= n) return;
  const int64_t groups = n / args.shape.group;
  const int64_t taps = min(static_cast<int64_t>(args.shape.taps), row % args.block_rows + 1);
  const float* own = args.coefficients + row * args.stride + ch / args.shape.group;
  float sum = 0;
  for (int64_t o = 0; o < taps; ++o) sum += (args.base[o * n + ch] + own[o * groups]) * args.x[(row - o) * n + ch];
  const int64_t at = row * n + ch;
  cuda::store_float(y, y_dtype, at, adds ? static_cast<const float*>(y)[at] + sum : sum);
}

void convolve_cuda(Stream& stream, const BlockConvArgs& args, TensorView y, bool adds) {
  cuda::launch(convolve_kernel,
               {.grid = cuda::dims(args.rows, (args.channels + kThreads - 1) / kThreads),
                .block = dim3(kThreads),
                .early = true},
               stream, args, y.data, y.dtype, adds);
}

}  // namespace

const BlockConvKernels BlockConvKernels::kCuda = {convolve_cuda};

}  // namespace volley::ops
