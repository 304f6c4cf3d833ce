// Packing, the choice of kernel, the plain kernel on values, and one for a few outputs.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "device/cuda/dependent.cuh"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/linear_cuda_bytes.h"
#include "ops/linear/cuda/linear_cuda_codes.h"
#include "ops/linear/cuda/linear_cuda_plain.cuh"
#include "ops/linear/linear_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kPackBytes = int64_t{64} << 20;  // raw rows on the device at a time

// Element of the packed matrix that holds (packed row, k).
__device__ int64_t packed_index(int64_t row, int64_t k, int64_t columns, DType storage) {
  if (storage == DType::kF32) return row * columns + k;
  const int64_t blocks = (columns + kBlockK - 1) / kBlockK;
  const int64_t block = row / kPanelRows * blocks + k / kBlockK;
  const int64_t r = row % kPanelRows, piece = k % kBlockK / 8;
  return block * (kBlockBytes / 2) + r * kBlockK + (piece ^ (r % 8)) * 8 + k % 8;
}

__global__ void pack_kernel(const void* rows, DType dtype, int64_t first_row, int64_t count, int64_t k, int64_t n,
                            LinearLayout layout, DType storage, void* packed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count * k; i += stride) {
    const float v = cuda::load_float(rows, dtype, i);
    const int64_t to = packed_index(packed_row(first_row + i / k, n, layout), i % k, k, storage);
    if (storage == DType::kF32) {
      static_cast<float*>(packed)[to] = v;
    } else {
      static_cast<__nv_bfloat16*>(packed)[to] = __float2bfloat16_rn(v);
    }
  }
}

struct Values {
  const void* packed;
  DType storage;

  __device__ float value(int64_t row, int64_t k, int64_t columns, DType) const {
    return cuda::load_float(packed, storage, packed_index(row, k, columns, storage));
  }
};

// Rows of bf16 with weights of a few bf16 rows, too few for the matrix unit's stores: a block an output and row. A
// thread takes 8 neighbours along k, then those kNarrowThreads * 8 on; lanes are added as a tree, then warps in order.
// A gate of 2048 inputs takes 2 us of a recorded step, and 37 in the plain kernel.
constexpr int kNarrowThreads = 128, kNarrowAhead = 4;
constexpr int64_t kNarrowOutputs = 3;

__device__ float add_products(const uint4& w, const uint4& x, float sum) {
  const auto* a = reinterpret_cast<const __nv_bfloat162*>(&w);
  const auto* b = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 l = __bfloat1622float2(a[i]), r = __bfloat1622float2(b[i]);
    sum = fmaf(l.y, r.y, fmaf(l.x, r.x, sum));
  }
  return sum;
}

__global__ void __launch_bounds__(kNarrowThreads) narrow_kernel(PlainArgs<Values> args) {
  __shared__ float warps[kNarrowThreads / 32];
  const int64_t row = blockIdx.x, output = blockIdx.y, pieces = args.k / 8;
  const auto weights = [&](int64_t piece) {
    const int64_t at = packed_index(output, piece * 8, args.k, DType::kBF16);
    return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.weights.packed) + at);
  };
  uint4 ahead[kNarrowAhead];  // loaded before the rows are ready
#pragma unroll
  for (int i = 0; i < kNarrowAhead; ++i) {
    const int64_t piece = static_cast<int64_t>(i) * kNarrowThreads + threadIdx.x;
    if (piece < pieces) ahead[i] = weights(piece);
  }
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const auto* x = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.x) + row * args.k);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNarrowAhead; ++i) {
    const int64_t piece = static_cast<int64_t>(i) * kNarrowThreads + threadIdx.x;
    if (piece < pieces) sum = add_products(ahead[i], x[piece], sum);
  }
  for (int64_t piece = int64_t{kNarrowAhead} * kNarrowThreads + threadIdx.x; piece < pieces; piece += kNarrowThreads) {
    sum = add_products(weights(piece), x[piece], sum);
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = ((warps[0] + warps[1]) + warps[2]) + warps[3];
  static_assert(kNarrowThreads == 128);
  const int64_t at = row * args.outputs + output;
  if (args.y_dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(args.y)[at] = __float2bfloat16_rn(sum);
  } else {
    static_cast<float*>(args.y)[at] = sum;
  }
}

// Whatever the number of rows is: the two kernels add in different orders.
bool is_narrow(const LinearWeight& w, TensorView x, const End& end) {
  return w.n <= kNarrowOutputs && !w.plain && w.layout == LinearLayout::kPlain && w.format.code == DType::kBF16 &&
         w.k % 8 == 0 && x.dtype == DType::kBF16 && end.kind == EndKind::kStore && end.bias.data == nullptr;
}

Status check_fp8(const GpuInfo& gpu, std::span<const WeightRows> parts, int64_t k, LinearLayout layout) {
  if (!linear_cuda_takes_fp8(gpu)) {
    return unimplemented("Weights stored as float8_e4m3 need a GPU of compute capability 9.0 (H100, H200).");
  }
  int64_t n = 0;
  for (const WeightRows& part : parts) n += part.rows;
  const int64_t outputs = layout == LinearLayout::kGateUp ? n / 2 : n;
  if (k % kQuantisedColumns == 0 && outputs % 4 == 0) return {};
  return unimplemented("A weight matrix of " + std::to_string(k) + " columns and " + std::to_string(outputs) +
                       " outputs cannot be stored as float8_e4m3: these must be multiples of " +
                       std::to_string(kQuantisedColumns) + " and 4. Use bfloat16.");
}

// Scales of a row's codes.
int64_t scales_of_row(const WeightFormat& format, int64_t k) {
  return format.in_blocks() ? linear_cuda_k_blocks(k, format.code) : 1;
}

// Bytes of a row as it goes to the device: plain values, or scales and codes.
int64_t raw_row_bytes(const WeightRows& part, int64_t k, int64_t scales) {
  if (part.codes) return k + scales * static_cast<int64_t>(sizeof(float));
  return k * static_cast<int64_t>(part.values ? sizeof(float) : dtype_size(part.dtype));
}

}  // namespace

void upload_rows(Device& device, const WeightRows& part, int64_t first, int64_t rows, int64_t k, void* raw,
                 int64_t scales) {
  const int64_t row_bytes = raw_row_bytes(part, k, scales);
  const auto bytes = static_cast<size_t>(rows * row_bytes);
  if (part.codes) {
    const auto scale_bytes = static_cast<size_t>(scales) * sizeof(float);
    const size_t codes_at = static_cast<size_t>(rows) * scale_bytes;
    std::vector<uint8_t> host(bytes);
    for_each_in_parallel(rows, [&](int64_t r) {
      std::vector<float> of_row(static_cast<size_t>(scales));
      part.codes(first + r, {{&host[codes_at + r * k], static_cast<size_t>(k)}, of_row, {}});
      std::memcpy(&host[r * scale_bytes], of_row.data(), scale_bytes);
    });
    device.upload(raw, host.data(), bytes);
  } else if (part.values) {
    std::vector<float> host(static_cast<size_t>(rows * k));
    for_each_in_parallel(rows, [&](int64_t r) { part.values(first + r, &host[r * k]); });
    device.upload(raw, host.data(), bytes);
  } else if (!part.is_dense(k)) {
    const auto size = static_cast<int64_t>(dtype_size(part.dtype));
    std::vector<char> host(bytes);
    for_each_in_parallel(rows, [&](int64_t r) {
      const char* from = static_cast<const char*>(part.data) + (first + r) * part.row_step(k) * size;
      char* to = &host[static_cast<size_t>(r * k * size)];
      if (part.column_stride == 1) {
        std::memcpy(to, from, static_cast<size_t>(k * size));
        return;
      }
      for (int64_t i = 0; i < k; ++i) {
        std::memcpy(to + i * size, from + i * part.column_stride * size, static_cast<size_t>(size));
      }
    });
    device.upload(raw, host.data(), bytes);
  } else {
    const auto* from = static_cast<const char*>(part.data);
    device.upload(raw, from + first * row_bytes, bytes);
  }
}

Result<LinearWeight> pack_linear_cuda(Device& device, std::span<const WeightRows> parts, int64_t k,
                                      const WeightFormat& format, LinearLayout layout) {
  const DType storage = format.code;
  const int64_t scales = scales_of_row(format, k);
  if (storage == DType::kF8E4M3) VOLLEY_RETURN_IF_ERROR(check_fp8(device.stream().gpu(), parts, k, layout));
  LinearWeight w;
  w.k = k;
  w.format = format;
  w.layout = layout;
  int64_t raw_bytes = 0;
  for (const WeightRows& part : parts) {
    w.n += part.rows;
    raw_bytes = std::max(raw_bytes, part.rows * raw_row_bytes(part, k, scales));
  }
  const int64_t packed_bytes = linear_cuda_packed_bytes(w.n, k, format, layout);
  VOLLEY_ASSIGN(w.packed, device.allocate(static_cast<size_t>(packed_bytes)));
  if (device.stream().dry()) return Result<LinearWeight>(std::move(w));
  VOLLEY_ASSIGN(Buffer raw,
                device.allocate(static_cast<size_t>(std::min(raw_bytes, std::max(kPackBytes, (k + scales) * 4)))));
  int64_t first_row = 0;
  for (const WeightRows& part : parts) {
    const int64_t row_bytes = raw_row_bytes(part, k, scales);
    const DType dtype = part.values ? DType::kF32 : part.dtype;
    const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>(raw.bytes()) / row_bytes);
    for (int64_t done = 0; done < part.rows; done += at_once) {
      const int64_t rows = std::min(at_once, part.rows - done);
      upload_rows(device, part, done, rows, k, raw.data(), scales);
      if (part.codes) {
        store_fp8_rows_cuda(device.stream(), raw.data(), first_row + done, rows, w);
        continue;
      }
      if (storage == DType::kF8E4M3) {
        pack_fp8_rows_cuda(device.stream(), raw.data(), dtype, first_row + done, rows, w);
        continue;
      }
      cuda::launch(
          pack_kernel, {.grid = cuda::dims(std::min<int64_t>((rows * k + 255) / 256, 4096)), .block = dim3(256)},
          device.stream(), raw.data(), dtype, first_row + done, rows, k, w.n, layout, storage, w.packed.data());
    }
    first_row += part.rows;
  }
  device.synchronize();  // the raw rows are about to go
  return Result<LinearWeight>(std::move(w));
}

void linear_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end) {
  const PlainArgs<Values> args = plain_args(Values{w.packed.data(), w.format.code}, w, x, y, end);
  if (!is_narrow(w, x, end)) return launch_plain(stream, args);
  cuda::launch(narrow_kernel,
               {.grid = cuda::dims(args.rows, args.outputs), .block = dim3(kNarrowThreads), .early = true}, stream,
               args);
}

void linear_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end) {
  const int64_t rows = y.shape[0];
  if (lies_in_halves(w.format)) return linear_codes_cuda(stream, w, x, y, end);
  if (end.summaries.whole != nullptr) {
    return linear_tiles_cuda(stream, w, x, y, end, LinearCudaPlan::make_summarising(w, rows));
  }
  switch (linear_cuda_kernel(stream.gpu(), w, x.values.dtype)) {
    case LinearKernel::kTiles: {
      const bool biased = end.bias.data != nullptr;
      return linear_tiles_cuda(stream, w, x, y, end,
                               biased ? LinearCudaPlan::make_biased(w, rows) : LinearCudaPlan::make(w, rows));
    }
    case LinearKernel::kPortable:
      return linear_portable_cuda(stream, w, x.values, y, end);
    case LinearKernel::kPlain:
      return linear_plain_cuda(stream, w, x.values, y, end);
  }
}

namespace {

Result<LinearWeight> pack_weights(Device& device, std::span<const WeightRows> parts, int64_t k,
                                  const WeightFormat& format, LinearLayout layout) {
  if (lies_in_halves(format)) return pack_codes(device, parts, k, format, layout);
  return pack_linear_cuda(device, parts, k, format, layout);
}
int64_t weight_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  if (lies_in_halves(format)) return linear_codes_bytes(n, k, format, layout);
  if (is_byte_codes(format)) return linear_bytes_bytes(n, k, format, layout);  // for experts
  return linear_cuda_packed_bytes(n, k, format, layout);
}

}  // namespace

const LinearKernels LinearKernels::kCuda = {pack_weights,          weight_bytes,           linear_cuda,
                                            linear_cuda_takes_fp8, linear_cuda_summarises, linear_cuda_sends};

}  // namespace volley::ops
