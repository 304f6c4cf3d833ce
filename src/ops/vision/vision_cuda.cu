#include <cuda_bf16.h>

#include <type_traits>

#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/vision/vision_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

__device__ PatchPlace place_on_gpu(const PatchGrid& grid, int64_t patch) {
  const int per = grid.merge * grid.merge, squares = grid.width / grid.merge;
  const int square = static_cast<int>(patch / per), inside = static_cast<int>(patch % per);
  return {square / squares * grid.merge + inside / grid.merge, square % squares * grid.merge + inside % grid.merge};
}

// A block a patch, here and below a row.
__global__ void patches_kernel(const uint8_t* pixels, PatchGrid grid, PatchValues values, int64_t first, void* y,
                               DType dtype) {
  const int size = values.size, square = size * size, channels = 3 * values.frames * square;
  const PatchPlace place = place_on_gpu(grid, first + blockIdx.x);
  const int64_t line = int64_t{grid.width} * size * 3;
  const uint8_t* from = pixels + place.row * size * line + int64_t{place.column} * size * 3;
  for (int i = static_cast<int>(threadIdx.x); i < channels; i += kThreads) {
    const int channel = i / (values.frames * square), at = i % square;
    const float pixel = from[at / size * line + at % size * 3 + channel];
    cuda::store_float(y, dtype, int64_t{blockIdx.x} * channels + i,
                      __fdiv_rn(pixel - values.mean[channel], values.std[channel]));
  }
}

__global__ void places_kernel(const float* bias, const float* table, int side, PatchGrid grid, int64_t first, float* x,
                              int h) {
  const PatchPlace place = place_on_gpu(grid, first + blockIdx.x);
  const PlaceBetween row = place_between(place.row, grid.height, side);
  const PlaceBetween column = place_between(place.column, grid.width, side);
  const auto at = [&](int r, int c) { return table + (int64_t{min(r, side - 1)} * side + min(c, side - 1)) * h; };
  const float *a = at(row.low, column.low), *b = at(row.low, column.low + 1);
  const float *c = at(row.low + 1, column.low), *d = at(row.low + 1, column.low + 1);
  const float down = row.high, right = column.high;
  const float wa = (1 - down) * (1 - right), wb = (1 - down) * right, wc = down * (1 - right), wd = down * right;
  x += int64_t{blockIdx.x} * h;
  for (int j = static_cast<int>(threadIdx.x); j < h; j += kThreads) {
    x[j] = x[j] + bias[j] + (a[j] * wa + b[j] * wb + c[j] * wc + d[j] * wd);
  }
}

// The sum over a block, in an order that only the number of threads decides.
__device__ float sum_over_block(float v) {
  __shared__ float sums[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (const float one : sums) sum += one;
  return sum;
}

// before, after: as BiasesAround has them, or null. A thread has every 256th element: up to kEach of them in registers;
// 0: all in memory.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(float* x, const float* weight, const float* bias, float eps, int h, void* y, DType dtype,
                      const float* before, const float* after) {
  const int64_t begin = int64_t{blockIdx.x} * h;
  float values[kEach > 0 ? kEach : 1], sum = 0, squares = 0;
  const auto for_elements = [&](const auto& use) {  // use(element, its value)
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kEach == 0) {
      for (int j = thread; j < h; j += kThreads) use(j, x[begin + j]);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (thread + i * kThreads < h) use(thread + i * kThreads, values[i]);
    }
  };
  for_elements([&](int j, float& value) { value = x[begin + j]; });
  if (before != nullptr) for_elements([&](int j, float& value) { value += before[j]; });
  for_elements([&](int, float value) { sum += value; });
  const float mean = sum_over_block(sum) / static_cast<float>(h);
  for_elements([&](int, float value) { squares += (value - mean) * (value - mean); });
  const float scale = 1.0f / sqrtf(sum_over_block(squares) / static_cast<float>(h) + eps);
  for_elements([&](int j, float value) {
    cuda::store_float(y, dtype, begin + j, (value - mean) * scale * weight[j] + bias[j]);
    if (after != nullptr) x[begin + j] = value + after[j];
  });
}

__device__ float gelu_on_gpu(float x, bool by_tanh) {
  if (!by_tanh) return 0.5f * x * (1.0f + erff(x * 0.707106781f));
  return x / (1.0f + expf(-1.59576912f * x * (1.0f + 0.044715f * x * x)));
}

constexpr int kPair = 2;

// Two neighbours a thread. A block a row, and a part of it.
__global__ void gelu_kernel(void* x, DType dtype, const float* bias, int n, bool by_tanh) {
  const int j = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kPair;
  if (j >= n) return;
  const int64_t i = int64_t{blockIdx.x} * n + j;
  if (dtype == DType::kBF16 && n % kPair == 0) {
    auto& pair = *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(x) + i);
    const float2 values = __bfloat1622float2(pair);
    pair =
        __floats2bfloat162_rn(gelu_on_gpu(values.x + bias[j], by_tanh), gelu_on_gpu(values.y + bias[j + 1], by_tanh));
    return;
  }
  for (int k = 0; k < kPair && j + k < n; ++k) {
    cuda::store_float(x, dtype, i + k, gelu_on_gpu(cuda::load_float(x, dtype, i + k) + bias[j + k], by_tanh));
  }
}

// from_half, to_half: elements of half a head; halves: of a row. A thread every 32nd element of half a narrow head.
template <typename T>
__global__ void heads_kernel(const T* from, int from_half, T* to, int to_half, int halves) {
  const int half = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (half >= halves) return;
  const int64_t at = int64_t{blockIdx.x} * halves + half;
  for (int i = static_cast<int>(threadIdx.x); i < to_half; i += 32) to[at * to_half + i] = from[at * from_half + i];
}

cuda::Launch by_rows(int64_t rows) {
  return {.grid = cuda::dims(rows), .block = dim3(kThreads)};
}
void take_patches_cuda(Stream& stream, TensorView pixels, const PatchGrid& grid, const PatchValues& values,
                       int64_t first, TensorView y) {
  cuda::launch(patches_kernel, by_rows(y.dim(0)), stream, pixels.as<uint8_t>(), grid, values, first, y.data, y.dtype);
}

void add_places_cuda(Stream& stream, TensorView bias, TensorView table, int32_t side, const PatchGrid& grid,
                     int64_t first, TensorView x) {
  cuda::launch(places_kernel, by_rows(x.dim(0)), stream, bias.as<float>(), table.as<float>(), side, grid, first,
               x.as<float>(), static_cast<int>(x.dim(1)));
}

void layer_norm_cuda(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y,
                     const BiasesAround& around) {
  const auto optional = [](const TensorView& vector) {
    return vector.data == nullptr ? nullptr : static_cast<const float*>(vector.as<float>());
  };
  const auto launch = [&](auto each) {
    cuda::launch(layer_norm_kernel<decltype(each)::value>, by_rows(x.dim(0)), stream, x.as<float>(), weight.as<float>(),
                 bias.as<float>(), eps, static_cast<int>(x.dim(1)), y.data, y.dtype, optional(around.before),
                 optional(around.after));
  };
  constexpr int kEach = 8;
  x.dim(1) <= kEach* kThreads ? launch(std::integral_constant<int, kEach>()) : launch(std::integral_constant<int, 0>());
}

void gelu_cuda(Stream& stream, TensorView x, TensorView bias, bool by_tanh) {
  const int64_t n = x.dim(1), each = kThreads * kPair;
  cuda::launch(gelu_kernel, {.grid = cuda::dims(x.dim(0), (n + each - 1) / each), .block = dim3(kThreads)}, stream,
               x.data, x.dtype, bias.as<float>(), static_cast<int>(n), by_tanh);
}

void narrow_heads_cuda(Stream& stream, TensorView wide, int32_t heads, TensorView narrow) {
  constexpr int kHalves = kThreads / 32;
  const int halves = 2 * heads;
  const int from = static_cast<int>(wide.dim(1) / halves), to = static_cast<int>(narrow.dim(1) / halves);
  const cuda::Launch how = {.grid = cuda::dims(narrow.dim(0), (halves + kHalves - 1) / kHalves),
                            .block = dim3(32, kHalves)};
  if (wide.dtype == DType::kF32) {
    cuda::launch(heads_kernel<float>, how, stream, wide.as<float>(), from, narrow.as<float>(), to, halves);
  } else {
    cuda::launch(heads_kernel<__nv_bfloat16>, how, stream, static_cast<const __nv_bfloat16*>(wide.data), from,
                 static_cast<__nv_bfloat16*>(narrow.data), to, halves);
  }
}

}  // namespace

const VisionKernels VisionKernels::kCuda = {take_patches_cuda, add_places_cuda, layer_norm_cuda, gelu_cuda,
                                            narrow_heads_cuda};

}  // namespace volley::ops
