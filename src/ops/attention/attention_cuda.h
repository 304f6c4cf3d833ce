// The CUDA kernels of this folder. Private to it.
#pragma once

#include <type_traits>

#include "ops/attention/attention.h"

namespace volley::ops {

// Defined in attention_tiles_cuda.cu, which knows for which GPUs machine code was built.
Result<AttentionBackend> resolve_attention_backend_cuda(const GpuInfo& gpu, AttentionBackend asked, DType kv,
                                                        int32_t head_dim, int32_t v_in_k);

// attention_plan_cuda.cu
AttentionWork plan_attention_cuda(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                                  Arena& scratch);

// attention_tiles_cuda.cu: bf16 or codes, with head_dim 64, 128, 256 or 512; latents as attention_latent_fits() says.
void attention_tiles_cuda(Stream& stream, const Rows& rows, const RowView& view, const Attention& args);

// early: may start while the kernel before it runs, whose predecessors have ended (Attention::after_write).
// The tile kernels for GPUs with and without wgmma, and the same for a cache of codes (launchers.cmake).
struct TilesArgs;
using TilesLaunch = void(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args);
TilesLaunch attention_hopper_tiles, attention_hopper_code_tiles;
TilesLaunch attention_portable_tiles, attention_portable_code_tiles;
// For tiles of kWideTileRows (HeadShape::whole), none of which is cut, and whether it takes these heads.
TilesLaunch attention_hopper_wide_tiles;
constexpr bool attention_wide_fits(DType kv, int head_dim) {
  return kv == DType::kBF16 && (head_dim == 64 || head_dim == 128);
}
// The one for latents, on GPUs with wgmma, and whether it takes these.
TilesLaunch attention_latent_tiles;
constexpr bool attention_latent_fits(DType kv, int head_dim, int v_in_k) {
  return kv == DType::kBF16 && head_dim == v_in_k + 64 && (v_in_k == 512 || v_in_k == 256);
}

// Whether the GPU has the shared memory that the portable kernel needs: for heads of 256 and more, most GPUs before
// Hopper do not.
bool attention_portable_fits(const GpuInfo& gpu, int head_dim);

// Calls use(std::integral_constant) with a head_dim that the tile kernels take.
template <typename Use>
auto with_head_dim(int head_dim, const Use& use) {
  switch (head_dim) {
    case 64:
      return use(std::integral_constant<int, 64>());
    case 128:
      return use(std::integral_constant<int, 128>());
    case 256:
      return use(std::integral_constant<int, 256>());
    default:
      VOLLEY_CHECK_EQ(head_dim, 512);
      return use(std::integral_constant<int, 512>());
  }
}

// The widest heads of the kernel for sm_90a: two tiles of K and V beside the query rows must fit into shared memory.
inline constexpr int kMaxHopperHeadDim = 256;

// Blocks of either tile kernel that a multiprocessor holds.
constexpr int attention_blocks_per_multiprocessor(int head_dim) {
  return head_dim > 128 ? 1 : 2;
}

}  // namespace volley::ops
