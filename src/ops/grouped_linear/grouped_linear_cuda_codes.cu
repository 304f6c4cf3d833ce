// Experts of codes: packing, the choice of kernel, and the plain kernel: any rows and shape, on any GPU.
#include <memory>

#include "base/math.h"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"

namespace volley::ops {
namespace {

// As the plain kernel of bf16 adds: lane l takes k = l, l + 32, …; lanes are added as a tree.
__device__ float warp_sum(const GroupedCodeArgs& args, const uint8_t* weights, int row, int part, int64_t x_row) {
  const GroupedArgs& grouped = args.grouped;
  const int64_t packed = grouped_cuda_row(row, part, grouped.layout);
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < grouped.k; i += 32) {
    float w = args.codes.bytes ? codes::widened_byte(weights, args.codes, packed, i, grouped.k)
                               : widened(weights, args.codes, packed, i, grouped.k);
    if (grouped.x_dtype == DType::kBF16) w = __bfloat162float(__float2bfloat16_rn(w));
    sum = fmaf(cuda::load_float(grouped.x, grouped.x_dtype, x_row * grouped.k + i), w, sum);
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
  return sum;
}

// A warp per output and grouped row.
__global__ void plain_codes_kernel(const GroupedCodeArgs code_args) {
  const GroupedArgs& args = code_args.grouped;
  const int grouped = static_cast<int>(blockIdx.x);
  const int output = static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  if (output >= args.outputs || grouped >= args.offsets[args.experts]) return;
  const int entry = args.entries[grouped];
  const uint8_t* weights = args.weights + args.chosen[entry] * args.expert_bytes;
  const int64_t x_row = source_row(args, grouped);
  const float* bias = args.bias == nullptr ? nullptr : args.bias + int64_t{args.chosen[entry]} * args.n + output;
  float v = warp_sum(code_args, weights, output, 0, x_row);
  if (bias != nullptr) v += *bias;
  if (args.layout == LinearLayout::kGateUp) {
    float up = warp_sum(code_args, weights, output, 1, x_row);
    if (bias != nullptr) up += bias[args.outputs];
    v = args.clamp.limit > 0 ? clamped_swiglu_exactly(v, up, args.clamp) : swiglu_one_exactly(v, up);
  }
  if (threadIdx.x % 32 != 0) return;
  const int64_t y_row = args.rows == GroupedRows::kIn ? grouped : entry;
  cuda::store_float(args.y, args.y_dtype, y_row * args.outputs + output, v);
}

}  // namespace

Result<ExpertWeights> pack_code_experts(Device& device, std::span<const WeightRows> parts, ExpertWeights w) {
  const int64_t bytes = grouped_codes_expert_bytes(w.n, w.k, w.format, w.layout);
  VOLLEY_ASSIGN(w.packed, device.allocate(static_cast<size_t>(w.experts * bytes)));
  if (device.stream().dry()) return Result<ExpertWeights>(std::move(w));
  const int64_t each = static_cast<int64_t>(parts.size()) / w.experts, rows = parts[0].rows;
  const int64_t panels = grouped_cuda_panels(w.n, w.layout), panel_bytes = bytes / panels;
  // Which part and row of it each row of an expert's panels is.
  std::vector<std::pair<int64_t, int64_t>> sources(static_cast<size_t>(panels * kPanelRows), {-1, 0});
  for (int64_t part = 0; part < each; ++part) {
    for (int64_t row = 0; row < rows; ++row) {
      sources[grouped_cuda_row(row, static_cast<int>(part), w.layout)] = {part, row};
    }
  }
  const std::unique_ptr<char[]> host(new char[static_cast<size_t>(bytes)]);
  for (int64_t expert = 0; expert < w.experts; ++expert) {
    std::vector<Status> errors(static_cast<size_t>(panels));
    for_each_in_parallel(panels, [&](int64_t panel) {
      errors[panel] = pack_code_panel(
          [&](int64_t r) -> CodeSource {
            const auto& [part, row] = sources[panel * kPanelRows + r];
            return {part < 0 ? nullptr : &parts[expert * each + part], row};
          },
          w.k, w.format, host.get() + panel * panel_bytes);
    });
    for (const Status& error : errors) VOLLEY_RETURN_IF_ERROR(error);
    device.upload(static_cast<char*>(w.packed.data()) + expert * bytes, host.get(), static_cast<size_t>(bytes));
  }
  return Result<ExpertWeights>(std::move(w));
}

LinearKernel grouped_codes_kernel(const GpuInfo& gpu, const ExpertWeights& w, DType x) {
  LinearWeight as_bf16;
  as_bf16.n = w.n;
  as_bf16.k = w.k;
  as_bf16.layout = w.layout;
  as_bf16.portable = w.portable;
  return linear_cuda_kernel(gpu, as_bf16, x);
}

void grouped_codes_cuda(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                        const GroupedCall& call, const End& end) {
  GroupedCodeArgs args{grouped_args(w, x, routing, y, call, end), CodeKind(w.format)};
  args.grouped.expert_bytes = grouped_codes_expert_bytes(w.n, w.k, w.format, w.layout);
  const GpuInfo& gpu = stream.gpu();
  switch (grouped_codes_kernel(gpu, w, x.dtype)) {
    case LinearKernel::kTiles:
      return grouped_codes_tiles_cuda(stream, args, grouped_tile_size(args.grouped.likely, args.grouped.spread),
                                      gpu.multiprocessors);
    case LinearKernel::kPortable:
      return grouped_codes_portable_cuda(stream, args, gpu.multiprocessors);
    case LinearKernel::kPlain: {
      cuda::Launch how;
      how.block = dim3(256);
      how.grid = dim3(static_cast<unsigned>(args.grouped.entry_count),
                      static_cast<unsigned>(divide_up(args.grouped.outputs, 8)));
      return cuda::launch(plain_codes_kernel, how, stream, args);
    }
  }
}

}  // namespace volley::ops
