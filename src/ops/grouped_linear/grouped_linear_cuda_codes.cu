// Experts of codes: packing, and the plain kernel on them.
#include <memory>

#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_plain.cuh"

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
    sum = fmaf(cuda::load_float(grouped.x, grouped.x_dtype, x_row * grouped.x_step + i), w, sum);
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
  return sum;
}

__global__ void plain_codes_kernel(const GroupedCodeArgs args) {
  plain_output(args.grouped, [&](const uint8_t* weights, int row, int part, int64_t x_row) {
    return warp_sum(args, weights, row, part, x_row);
  });
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

void multiply_code_groups(Stream& stream, const GroupedCodeArgs& args, LinearKernel kernel) {
  const GpuInfo& gpu = stream.gpu();
  switch (kernel) {
    case LinearKernel::kTiles:
      return grouped_codes_tiles_cuda(stream, args, grouped_tile_size(args.grouped.likely, args.grouped.spread),
                                      gpu.multiprocessors);
    case LinearKernel::kPortable:
      return grouped_codes_portable_cuda(stream, args, gpu.multiprocessors);
    case LinearKernel::kPlain:
      return cuda::launch(plain_codes_kernel, plain_launch(args.grouped), stream, args);
  }
}

}  // namespace volley::ops
