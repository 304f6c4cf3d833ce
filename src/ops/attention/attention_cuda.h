// The CUDA kernels of this folder. Private to it.
#pragma once

#include "ops/attention/attention.h"

namespace volley::ops {

// attention_tiles_cuda.cu, where it is known which machine code there is.
Result<AttentionBackend> resolve_attention_backend_cuda(const GpuInfo& gpu, AttentionBackend asked, DType kv,
                                                        int32_t head_dim);

// attention_plan_cuda.cu
AttentionWork plan_attention_cuda(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                                  Arena& scratch);

// attention_tiles_cuda.cu: bf16 or codes, with head_dim 64, 128 or 256.
void attention_tiles_cuda(Stream& stream, const Rows& rows, const RowView& view, const Attention& args);

// early: may start while the kernel before it runs, whose predecessors have ended (Attention::after_write).
// The tile kernels for GPUs with and without wgmma (attention_hopper_cuda.cu, attention_portable_cuda.cu), and the same
// for a cache of codes (attention_hopper_codes_cuda.cu, attention_portable_codes_cuda.cu).
struct TilesArgs;
void attention_hopper_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args);
void attention_portable_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args);
void attention_hopper_code_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args);
void attention_portable_code_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args);

// Whether the GPU has the shared memory that the portable kernel wants: for heads of 256, most below Hopper have not.
bool attention_portable_fits(const GpuInfo& gpu, int head_dim);

// Blocks of either tile kernel that a multiprocessor holds.
constexpr int attention_blocks_per_multiprocessor(int head_dim) {
  return head_dim > 128 ? 1 : 2;
}

}  // namespace volley::ops
