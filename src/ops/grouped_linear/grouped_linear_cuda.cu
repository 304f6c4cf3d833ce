// Packing, the choice of kernel, the plain kernel on values, and the combination.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/math.h"
#include "device/cuda/dependent.cuh"
#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_plain.cuh"
#include "ops/grouped_linear/grouped_linear_kernels.h"

namespace volley::ops {
namespace {

bool is_codes(const WeightFormat& format) {
  return lies_in_halves(format) || is_byte_codes(format);
}

// Element of an expert's bf16 panels that holds (packed row, k).
__device__ int64_t panel_index(int64_t row, int64_t k, int64_t columns) {
  const int64_t blocks = (columns + kBlockK - 1) / kBlockK;
  const int64_t block = row / kPanelRows * blocks + k / kBlockK;
  const int64_t r = row % kPanelRows, piece = k % kBlockK / 8;
  return block * (kBlockBytes / 2) + r * kBlockK + (piece ^ (r % 8)) * 8 + k % 8;
}

struct PackArgs {
  const void* rows;
  DType dtype;
  int64_t first_row, count;  // rows of the part
  int64_t part_rows, k;
  int part;
  LinearLayout layout;
  DType storage;
  void* packed;  // the expert's
};

__global__ void pack_kernel(const PackArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count * args.k; i += stride) {
    const float v = cuda::load_float(args.rows, args.dtype, i);
    const int64_t row = args.first_row + i / args.k, k = i % args.k;
    if (args.storage == DType::kF32) {
      static_cast<float*>(args.packed)[(args.part * args.part_rows + row) * args.k + k] = v;
    } else {
      const int64_t to = panel_index(grouped_cuda_row(row, args.part, args.layout), k, args.k);
      static_cast<__nv_bfloat16*>(args.packed)[to] = __float2bfloat16_rn(v);
    }
  }
}

// Sum over k of a weight row and a row of x: lane l takes k = l, l + 32, …; lanes are added as a tree.
__device__ float warp_sum(const GroupedArgs& args, const uint8_t* weights, int row, int part, int64_t x_row) {
  const bool f32 = args.storage == DType::kF32;
  const int64_t packed = grouped_cuda_row(row, part, args.layout);
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < args.k; i += 32) {
    const int64_t at =
        f32 ? (static_cast<int64_t>(part) * args.outputs + row) * args.k + i : panel_index(packed, i, args.k);
    const float w = cuda::load_float(weights, args.storage, at);
    sum = fmaf(cuda::load_float(args.x, args.x_dtype, x_row * args.x_step + i), w, sum);
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
  return sum;
}

__global__ void plain_kernel(const GroupedArgs args) {
  plain_output(args, [&](const uint8_t* weights, int row, int part, int64_t x_row) {
    return warp_sum(args, weights, row, part, x_row);
  });
}

// Rows of other strides, row by row.
void copy_dense(const WeightRows& part, int64_t k, std::byte* to) {
  constexpr int64_t kBlock = 64;  // rows and columns whose cache lines are still there for the next row
  const auto size = static_cast<int64_t>(dtype_size(part.dtype));
  const auto* from = static_cast<const std::byte*>(part.data);
  for_each_in_parallel(divide_up(part.rows, kBlock), [&](int64_t block) {
    const int64_t row0 = block * kBlock;
    for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
      for (int64_t row = row0; row < std::min(row0 + kBlock, part.rows); ++row) {
        for (int64_t i = k0; i < std::min(k0 + kBlock, k); ++i) {
          std::memcpy(to + (row * k + i) * size, from + (row * part.row_step(k) + i * part.column_stride) * size, size);
        }
      }
    }
  });
}

constexpr int kCombineThreads = 128;

template <int kWidth>
struct alignas(4 * kWidth) Values {
  float v[kWidth];
};

template <int kWidth>
__device__ Values<kWidth> load_values(const void* from, bool bf16, int64_t at) {
  Values<kWidth> values;
  if constexpr (kWidth == 1) {
    values.v[0] = cuda::load_float(from, bf16 ? DType::kBF16 : DType::kF32, at);
  } else if (bf16) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(from) + at);
    values.v[0] = __uint_as_float(pairs.x << 16);
    values.v[1] = __uint_as_float(pairs.x & 0xffff0000u);
    values.v[2] = __uint_as_float(pairs.y << 16);
    values.v[3] = __uint_as_float(pairs.y & 0xffff0000u);
  } else {
    *reinterpret_cast<float4*>(values.v) = *reinterpret_cast<const float4*>(static_cast<const float*>(from) + at);
  }
  return values;
}

// The same of memory that another GPU wrote and may have: past the cache of the multiprocessor.
template <int kWidth>
__device__ Values<kWidth> look_at_values(const void* from, bool bf16, int64_t at) {
  Values<kWidth> values;
  if constexpr (kWidth == 4) {
    const auto address = __cvta_generic_to_global(static_cast<const char*>(from) + at * (bf16 ? 2 : 4));
    uint32_t w[4] = {};
    if (bf16) {
      asm volatile("ld.relaxed.sys.global.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(address) : "memory");
      w[3] = w[1] & 0xffff0000u, w[2] = w[1] << 16, w[1] = w[0] & 0xffff0000u, w[0] <<= 16;
    } else {
      asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "l"(address)
                   : "memory");
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) values.v[c] = __uint_as_float(w[c]);
  } else if (bf16) {
    const auto bits = static_cast<const volatile uint16_t*>(from)[at];
    values.v[0] = __uint_as_float(static_cast<uint32_t>(bits) << 16);
  } else {
    values.v[0] = static_cast<const volatile float*>(from)[at];
  }
  return values;
}

struct CombineArgs {
  const int32_t* experts;
  const float* weights;
  const void* d;
  bool d_bf16;
  float* y;
  int64_t width;
  int top_k;
  ExpertShards shards;
};

// The expert's output, in the memory of the replica that has the expert.
__device__ const void* made_by(const CombineArgs& args, int expert) {
  const int owner = expert_owner(expert, args.shards.experts, args.shards.replicas);
  return static_cast<const char*>(args.d) + args.shards.shifts[owner];
}

// A thread adds up kWidth neighbouring columns of a row.
template <int kWidth, bool kShards>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineArgs args) {
  constexpr int kAhead = 8;  // slots whose values are read at once
  const int64_t row = blockIdx.x, column = (static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x) * kWidth;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  if (column >= args.width) return;
  const int64_t to = row * args.width + column;
  Values<kWidth> y = load_values<kWidth>(args.y, false, to), sum = {};
  bool any = false;  // the same for all threads of a row
  for (int begin = 0; begin < args.top_k; begin += kAhead) {
    Values<kWidth> d[kAhead] = {};
    float weights[kAhead] = {};
    int32_t experts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      experts[i] = begin + i < args.top_k ? args.experts[row * args.top_k + begin + i] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (experts[i] < 0) continue;
      const int64_t entry = row * args.top_k + begin + i;
      weights[i] = args.weights[entry];
      const int64_t at = entry * args.width + column;
      d[i] = kShards ? look_at_values<kWidth>(made_by(args, experts[i]), args.d_bf16, at)
                     : load_values<kWidth>(args.d, args.d_bf16, at);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (experts[i] < 0) continue;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        const float product = weights[i] * d[i].v[c];
        sum.v[c] = any ? sum.v[c] + product : product;
      }
      any = true;
    }
  }
  if (!any) return;
#pragma unroll
  for (int c = 0; c < kWidth; ++c) y.v[c] += sum.v[c];
  if constexpr (kWidth == 4) {
    *reinterpret_cast<float4*>(args.y + to) = {y.v[0], y.v[1], y.v[2], y.v[3]};
  } else {
    args.y[to] = y.v[0];
  }
}

template <int kWidth>
void launch_combine(Stream& stream, const CombineArgs& args, int64_t rows) {
  const cuda::Launch how = {.grid = cuda::dims(rows, divide_up(args.width, kCombineThreads * kWidth)),
                            .block = dim3(kCombineThreads),
                            .early = true};
  if (args.shards.shifts != nullptr) return cuda::launch(combine_kernel<kWidth, true>, how, stream, args);
  cuda::launch(combine_kernel<kWidth, false>, how, stream, args);
}

}  // namespace

Result<ExpertWeights> pack_experts_cuda(Device& device, std::span<const WeightRows> parts, ExpertWeights w) {
  if (is_codes(w.format)) return pack_code_experts(device, parts, std::move(w));
  const int64_t bytes = grouped_cuda_expert_bytes(w.n, w.k, w.format.code, w.layout);
  VOLLEY_ASSIGN(w.packed, device.allocate(static_cast<size_t>(w.experts * bytes)));
  if (device.stream().dry()) return Result<ExpertWeights>(std::move(w));
  const int64_t each = static_cast<int64_t>(parts.size()) / w.experts, rows = parts[0].rows;
  std::vector<std::byte> dense;
  VOLLEY_ASSIGN(Buffer raw, device.allocate(static_cast<size_t>(rows * w.k * 4)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightRows& part = parts[i];
    if (part.values || part.is_dense(w.k)) {
      upload_rows(device, part, 0, rows, w.k, raw.data());
    } else {
      dense.resize(static_cast<size_t>(rows * w.k) * dtype_size(part.dtype));
      copy_dense(part, w.k, dense.data());
      device.upload(raw.data(), dense.data(), dense.size());
    }
    const int64_t expert = static_cast<int64_t>(i) / each;
    const PackArgs args{raw.data(),
                        part.values ? DType::kF32 : part.dtype,
                        0,
                        rows,
                        rows,
                        w.k,
                        static_cast<int>(static_cast<int64_t>(i) % each),
                        w.layout,
                        w.format.code,
                        static_cast<char*>(w.packed.data()) + expert * bytes};
    cuda::launch(pack_kernel,
                 {.grid = cuda::dims(std::min<int64_t>(divide_up(rows * w.k, 256), 4096)), .block = dim3(256)},
                 device.stream(), args);
  }
  device.synchronize();  // the raw rows are about to go
  return Result<ExpertWeights>(std::move(w));
}

LinearKernel grouped_cuda_kernel(const GpuInfo& gpu, const ExpertWeights& w, DType x) {
  LinearWeight one;
  one.n = w.n;
  one.k = w.k;
  if (!is_codes(w.format)) one.format = w.format;  // codes: the bf16 weights that they stand for
  one.layout = w.layout;
  one.portable = w.portable;
  return linear_cuda_kernel(gpu, one, x);
}

GroupedTileSize grouped_tile_size(int64_t entries, int64_t experts) {
  return entries <= 32 * experts ? GroupedTileSize::kFewRows : GroupedTileSize::kManyRows;
}

namespace {

int64_t packed_expert_bytes(const ExpertWeights& w) {
  return is_codes(w.format) ? grouped_codes_expert_bytes(w.n, w.k, w.format, w.layout)
                            : grouped_cuda_expert_bytes(w.n, w.k, w.format.code, w.layout);
}

// The arguments that the weights and the types decide.
GroupedArgs weight_args(const ExpertWeights& w, TensorView x, TensorView y) {
  GroupedArgs args;
  args.weights = static_cast<const uint8_t*>(w.packed.data());
  args.x = static_cast<const uint8_t*>(x.data);
  args.y = y.data;
  args.expert_bytes = packed_expert_bytes(w);
  args.experts = static_cast<int>(w.experts);
  args.n = static_cast<int>(w.n);
  args.k = static_cast<int>(w.k);
  args.k_blocks = static_cast<int>(linear_cuda_k_blocks(w.k));
  args.panels = static_cast<int>(grouped_cuda_panels(w.n, w.layout));
  args.outputs = static_cast<int>(w.layout == LinearLayout::kGateUp ? w.n / 2 : w.n);
  args.x_step = static_cast<int>(x.dim(x.rank - 1));
  args.y_step = static_cast<int>(y.dim(y.rank - 1));
  args.layout = w.layout;
  args.storage = w.format.code;
  args.x_dtype = x.dtype;
  args.y_dtype = y.dtype;
  return args;
}

void multiply_groups(Stream& stream, const ExpertWeights& w, const GroupedArgs& args, LinearKernel kernel) {
  const GpuInfo& gpu = stream.gpu();
  if (is_codes(w.format)) return multiply_code_groups(stream, {args, CodeKind(w.format)}, kernel);
  switch (kernel) {
    case LinearKernel::kTiles:
      return grouped_tiles_cuda(stream, args, grouped_tile_size(args.likely, args.spread), gpu.multiprocessors);
    case LinearKernel::kPortable:
      return grouped_portable_cuda(stream, args, gpu.multiprocessors);
    case LinearKernel::kPlain:
      return cuda::launch(plain_kernel, plain_launch(args), stream, args);
  }
}

}  // namespace

GroupedArgs grouped_args(const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                         const GroupedCall& call, const End& end) {
  GroupedArgs args = weight_args(w, x, y);
  args.offsets = routing.offsets.as<int32_t>();
  args.entries = routing.entries.as<int32_t>();
  args.chosen = routing.experts.as<int32_t>();
  args.spread = static_cast<int>(routing.spread);
  args.top_k = static_cast<int>(routing.top_k());
  args.entry_count = static_cast<int>(y.shape[0]);
  args.likely = static_cast<int>(routing.likely());
  args.rows = call.rows;
  args.routing_ready = call.routing_ready;
  if (end.bias.data != nullptr) args.bias = end.bias.as<float>();
  args.end = end.kind;
  args.clamp = end.clamp;
  return args;
}

void grouped_linear_cuda(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                         const GroupedCall& call, const End& end) {
  multiply_groups(stream, w, grouped_args(w, x, routing, y, call, end), grouped_cuda_kernel(stream.gpu(), w, x.dtype));
}

// The tile kernels read x and write y in pieces of 16 and 8 bytes.
void head_linear_cuda(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y) {
  GroupedArgs args = weight_args(w, x, y);
  args.each_rows = static_cast<int>(x.dim(0));
  args.spread = args.experts;
  args.top_k = 1;
  args.entry_count = args.likely = args.each_rows * args.experts;
  args.rows = GroupedRows::kOut;
  args.routing_ready = true;  // there is none
  const bool aligned = args.x_step % 8 == 0 && args.y_step % 2 == 0;
  multiply_groups(stream, w, args, aligned ? grouped_cuda_kernel(stream.gpu(), w, x.dtype) : LinearKernel::kPlain);
}

void combine_experts_cuda(Stream& stream, const Routing& routing, TensorView d, TensorView y,
                          const ExpertShards& shards) {
  const CombineArgs args{routing.experts.as<int32_t>(),
                         routing.weights.as<float>(),
                         d.data,
                         d.dtype == DType::kBF16,
                         y.as<float>(),
                         y.shape[1],
                         static_cast<int>(routing.top_k()),
                         shards};
  if (args.width % 4 == 0) return launch_combine<4>(stream, args, y.shape[0]);
  launch_combine<1>(stream, args, y.shape[0]);
}

// Whether one kernel did both products, and combine_experts() the rest; if not, nothing was done.
bool experts_ffn_cuda(Stream& stream, const ExpertsCall& call, const Routing& routing) {
  const GpuInfo& gpu = stream.gpu();
  const WeightFormat &in = call.gate_up.format, &out = call.down.format;
  const bool codes = is_codes(in);
  if (lies_in_halves(in) && !in.is_nibbles()) return false;  // one kernel of both is not built for these
  if (in != out && !(is_byte_codes(in) && is_byte_codes(out)) && (codes || is_codes(out))) return false;
  const bool tiles = grouped_cuda_kernel(gpu, call.gate_up, call.x.values.dtype) == LinearKernel::kTiles &&
                     grouped_cuda_kernel(gpu, call.down, call.inner.dtype) == LinearKernel::kTiles;
  const int64_t entries = routing.rows() * routing.top_k();
  if (!tiles || grouped_tile_size(entries, routing.spread) != GroupedTileSize::kFewRows) return false;
  ExpertsArgs args;
  args.gate_up =
      grouped_args(call.gate_up, call.x.values, routing, call.inner, {.rows = GroupedRows::kIn}, call.gate_up_end);
  args.down = grouped_args(call.down, call.inner, routing, call.outer, {.rows = GroupedRows::kOut}, call.down_end);
  args.dealt = call.counters.as<int32_t>();
  args.written = args.dealt + 1;
  if (codes) {
    code_experts_tiles_cuda(stream, {args, CodeKind(call.gate_up.format), CodeKind(call.down.format)}, routing.rows(),
                            gpu.multiprocessors);
  } else {
    experts_tiles_cuda(stream, args, routing.rows(), gpu.multiprocessors);
  }
  combine_experts_cuda(stream, routing, call.outer, call.y, {});
  return true;
}

const GroupedLinearKernels GroupedLinearKernels::kCuda = {pack_experts_cuda, grouped_linear_cuda, combine_experts_cuda,
                                                          experts_ffn_cuda};

}  // namespace volley::ops
