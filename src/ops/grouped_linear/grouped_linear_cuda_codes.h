// Experts whose weights are 4-bit codes, on CUDA: panels of ops/linear's blocks of codes (linear_cuda_codes.h), whose
// rows stand as grouped_linear_cuda.h says. Private to this folder.
#pragma once

#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/linear/linear_cuda_widen.cuh"

namespace volley::ops {

struct GroupedCodeArgs {
  GroupedArgs grouped;  // expert_bytes: of codes
  CodeKind codes;
};

// What the kernel of both products takes.
struct CodeExpertsArgs {
  ExpertsArgs products;    // expert_bytes: of codes
  CodeKind gate_up, down;  // of one format
};

constexpr int64_t grouped_codes_expert_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  return grouped_cuda_panels(n, layout) * ((k + kBlockK - 1) / kBlockK) * 2 *
         code_half_bytes(code_words(format.group_k));
}

// As pack_experts(), of a `w` that lacks its memory alone. On any device: what becomes packed is made on the host.
Result<ExpertWeights> pack_code_experts(Device& device, std::span<const WeightRows> parts, ExpertWeights w);

// Which kernel takes a call: that of the bf16 weights which it is a product with.
LinearKernel grouped_codes_kernel(const GpuInfo& gpu, const ExpertWeights& w, DType x);

// As grouped_linear(); the first chooses.
void grouped_codes_cuda(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                        const GroupedCall& call, const End& end);
void grouped_codes_tiles_cuda(Stream& stream, const GroupedCodeArgs& args, GroupedTileSize size, int processors);
// rows: of the pass, which bound those of an expert.
void code_experts_tiles_cuda(Stream& stream, const CodeExpertsArgs& args, int64_t rows, int processors);
void grouped_codes_portable_cuda(Stream& stream, const GroupedCodeArgs& args, int processors);

}  // namespace volley::ops
