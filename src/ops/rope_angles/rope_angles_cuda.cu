#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/rope_angles/rope_angles_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 128;  // pairs of a head at most

// A block a row.
__global__ void take_kernel(const float* from_cos, const float* from_sin, int64_t limit, const int32_t* axes,
                            const int32_t* positions, int pairs, float* to_cos, float* to_sin) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int64_t position = positions[row * kRopeAxes + axes[i]];
    if (position < 0 || position >= limit) __trap();  // requests were validated: our bug
    to_cos[row * pairs + i] = from_cos[position * pairs + i];
    to_sin[row * pairs + i] = from_sin[position * pairs + i];
  }
}

void take_rope_angles_cuda(Stream& stream, const RopeTables& from, TensorView axes, TensorView positions,
                           const RopeTables& to) {
  cuda::launch(take_kernel, {.grid = cuda::dims(to.cos.dim(0)), .block = dim3(kThreads), .early = true}, stream,
               from.cos.as<float>(), from.sin.as<float>(), from.cos.dim(0), axes.as<int32_t>(), positions.as<int32_t>(),
               static_cast<int>(to.cos.dim(1)), to.cos.as<float>(), to.sin.as<float>());
}

}  // namespace

const RopeAngleKernels RopeAngleKernels::kCuda = {take_rope_angles_cuda};

}  // namespace volley::ops
