// Products with experts whose weights are codes, on CUDA. Private to this folder.
#pragma once

#include "ops/grouped_linear/grouped_linear_cuda_codes_pack.h"
#include "ops/linear/cuda/linear_cuda_widen_bytes.cuh"

namespace volley::ops {

struct GroupedCodeArgs {
  GroupedArgs grouped;
  CodeKind codes;
};

// The arguments of the kernel of both products.
struct CodeExpertsArgs {
  ExpertsArgs products;
  CodeKind gate_up, down;  // kinds of one format; for e4m3, groups may differ
};

// Grouped products, by the first with one of the kernels of the others. grouped_codes_tiles_cuda() leaves e4m3 and
// integers of more than 4 bits to grouped_bytes_tiles_cuda().
void multiply_code_groups(Stream& stream, const GroupedCodeArgs& args, LinearKernel kernel);
void grouped_codes_tiles_cuda(Stream& stream, const GroupedCodeArgs& args, GroupedTileSize size, int processors);
void grouped_bytes_tiles_cuda(Stream& stream, const GroupedCodeArgs& args, GroupedTileSize size, int processors);
// rows: those of the pass, which bound an expert's.
void code_experts_tiles_cuda(Stream& stream, const CodeExpertsArgs& args, int64_t rows, int processors);
void grouped_codes_portable_cuda(Stream& stream, const GroupedCodeArgs& args, int processors);

}  // namespace volley::ops
