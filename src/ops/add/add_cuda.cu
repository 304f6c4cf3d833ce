#include "base/math.h"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/add/add_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

template <bool kAdd>
__global__ void __launch_bounds__(kThreads) add_kernel(const float* x, float* y, int64_t count) {
  cuda::launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  cuda::wait_for_predecessors();
  if (i < count) y[i] = kAdd ? y[i] + x[i] : x[i];
}

template <bool kAdd>
void launch_add(Stream& stream, TensorView x, TensorView y) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(divide_up(y.count(), kThreads)));
  how.block = dim3(kThreads);
  how.early = true;
  cuda::launch(add_kernel<kAdd>, how, stream, x.as<float>(), y.as<float>(), y.count());
}

}  // namespace

const AddKernels AddKernels::kCuda = {launch_add<true>, launch_add<false>};

}  // namespace volley::ops
