#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/sigmoid_gate/sigmoid_gate_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;  // neighbours that a thread takes, where rows are made of whole ones

struct GateArgs {
  void* y;
  DType y_dtype;
  const float* gates;
  int n, m, first;
  int64_t count;  // elements of y
};

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

__device__ int64_t gate_of(const GateArgs& args, int64_t i) {
  const int64_t row = i / args.n;
  return args.m == 1 ? row : row * args.m + args.first + (i - row * args.n);
}

__global__ void __launch_bounds__(kThreads) gate_kernel(GateArgs args) {
  cuda::launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  cuda::wait_for_predecessors();
  if (i >= args.count) return;
  const float y = cuda::load_float(args.y, args.y_dtype, i);
  cuda::store_float(args.y, args.y_dtype, i, y * sigmoid(args.gates[gate_of(args, i)]));
}

// The same of four neighbours, which are of one row.
__global__ void __launch_bounds__(kThreads) gate_fours_kernel(GateArgs args) {
  cuda::launch_dependents();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kFour;
  cuda::wait_for_predecessors();
  if (i >= args.count) return;
  const float* gate = args.gates + gate_of(args, i);
  float4 g;
  if (args.m == 1) {
    g.x = g.y = g.z = g.w = sigmoid(*gate);
  } else {
    g = *reinterpret_cast<const float4*>(gate);
    g = {sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w)};
  }
  if (args.y_dtype == DType::kF32) {
    float4& y = reinterpret_cast<float4*>(args.y)[i / kFour];
    y = {y.x * g.x, y.y * g.y, y.z * g.z, y.w * g.w};
    return;
  }
  uint2& y = reinterpret_cast<uint2*>(args.y)[i / kFour];
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(y.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(y.y));
  const __nv_bfloat162 a = __floats2bfloat162_rn(low.x * g.x, low.y * g.y);
  const __nv_bfloat162 b = __floats2bfloat162_rn(high.x * g.z, high.y * g.w);
  y = {reinterpret_cast<const uint32_t&>(a), reinterpret_cast<const uint32_t&>(b)};
}

void sigmoid_gate_cuda(Stream& stream, TensorView y, TensorView gates, int64_t first) {
  GateArgs args = {};
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.gates = gates.as<float>();
  args.n = static_cast<int>(y.dim(1));
  args.m = static_cast<int>(gates.dim(1));
  args.first = static_cast<int>(first);
  args.count = y.count();
  const bool fours = args.n % kFour == 0 && (args.m == 1 || (args.m % kFour == 0 && first % kFour == 0));
  const int64_t each = fours ? kFour * kThreads : kThreads;
  cuda::launch(fours ? gate_fours_kernel : gate_kernel,
               {.grid = cuda::dims((args.count + each - 1) / each), .block = dim3(kThreads), .early = true}, stream,
               args);
}

}  // namespace

const SigmoidGateKernels SigmoidGateKernels::kCuda = {sigmoid_gate_cuda};

}  // namespace volley::ops
