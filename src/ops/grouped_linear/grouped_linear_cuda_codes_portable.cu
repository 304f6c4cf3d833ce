// Grouped products with codes for GPUs without wgmma (sm_80 and later): the kernel of
// grouped_linear_cuda_portable.cu, whose warps widen their rows in registers instead of loading them.
#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"
#include "ops/linear/linear_cuda_fragments.cuh"

namespace volley::ops {
namespace {

using namespace fragments;  // NOLINT: what this file is written in

constexpr int kThreads = 128, kWarps = 4;

// kE4M3: e4m3 instead of 4-bit codes.
template <int kRows, bool kE4M3>
struct Stage {
  static constexpr int kWeightBytes = kE4M3 ? kMostByteBlock : 2 * code_half_bytes(kMostCodeWords);
  static constexpr int kBytes = kWeightBytes + kRows * 128;
  static constexpr int kCount = 4;
};

// Bytes of a panel before block `block`.
template <bool kE4M3>
__device__ int64_t block_at(const CodeKind& codes, int block) {
  if constexpr (kE4M3) return byte_block_at(block, codes.pairs_share);
  return static_cast<int64_t>(block) * 2 * code_half_bytes(codes.words);
}

// Block `block` of k: a panel's codes as they are, rows of x from their places.
template <int kRows, bool kE4M3>
__device__ void fill_stage(const GroupedArgs& args, const CodeKind& codes, uint32_t stage, const uint8_t* weights,
                           const int* sources, int rows, int block) {
  const int t = static_cast<int>(threadIdx.x);
  const int64_t from = block_at<kE4M3>(codes, block);
  const int block_bytes = static_cast<int>(block_at<kE4M3>(codes, block + 1) - from);
  for (int i = t; i < block_bytes / 16; i += kThreads) copy16(stage + i * 16, weights + from + i * 16, 16);
#pragma unroll
  for (int i = t; i < kRows * 8; i += kThreads) {
    const int r = i / 8, piece = i % 8, k = block * static_cast<int>(kBlockK) + piece * 8;
    const bool exists = r < rows && k < args.k;
    const int64_t at = exists ? (static_cast<int64_t>(sources[r]) * args.k + k) * 2 : 0;
    copy16(stage + Stage<kRows, kE4M3>::kWeightBytes + swizzled(r, piece), args.x + at, exists ? 16 : 0);
  }
}

// sums of this warp's 16 weight rows and all rows, over one stage. bytes: what the block before left.
template <int kRows, bool kE4M3>
__device__ void multiply_stage(const CodeKind& codes, uint32_t stage, int block,
                               codes::StoredCodes<codes::Bytes>& bytes, float (&sums)[kRows / 2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t a[4][4];
  if constexpr (kE4M3) {
    const uint32_t words = stage + bytes.words_at(warp), scales = stage + bytes.scales_at(codes, warp);
    if (block % 2 == 0) {
      bytes.load<false>(codes, words, scales);
    } else {
      bytes.load<true>(codes, words, scales);
    }
    codes::widen(codes, bytes, a);
  } else {
    widen_half(codes, stage + warp / 2 * code_half_bytes(codes.words), warp % 2, a);
  }
#pragma unroll
  for (int k = 0; k < kBlockK / 16; k += 2) {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      uint32_t b[4];  // of both steps of k
      load_fragments(b, stage + Stage<kRows, kE4M3>::kWeightBytes + swizzled(j * 8 + lane % 8, k * 2 + lane / 8));
      float(&d)[4] = reinterpret_cast<float(&)[4]>(sums[4 * j]);
      multiply16(d, a[k], b[0], b[1]);
      multiply16(d, a[k + 1], b[2], b[3]);
    }
  }
}

template <int kRows, bool kE4M3>
__device__ void multiply_tile(const GroupedCodeArgs& code_args, const GroupedTile& tile, uint32_t ring, int* sources) {
  using OwnStage = Stage<kRows, kE4M3>;
  const GroupedArgs& args = code_args.grouped;
  __syncthreads();  // nobody reads the ring and the sources of the tile before
  for (int r = static_cast<int>(threadIdx.x); r < tile.rows; r += kThreads) {
    sources[r] = source_row(args, tile.row + r);
  }
  __syncthreads();
  const uint8_t* weights =
      args.weights + tile.expert * args.expert_bytes + tile.panel * block_at<kE4M3>(code_args.codes, args.k_blocks);
  const auto fill = [&](int block) {
    if (block < args.k_blocks) {
      fill_stage<kRows, kE4M3>(args, code_args.codes, ring + block % OwnStage::kCount * OwnStage::kBytes, weights,
                               sources, tile.rows, block);
    }
    copies_commit();  // also if empty, so that counting groups counts blocks
  };
  float sums[kRows / 2] = {};
  codes::StoredCodes<codes::Bytes> bytes;
  for (int i = 0; i < OwnStage::kCount - 1; ++i) fill(i);
  for (int block = 0; block < args.k_blocks; ++block) {
    copies_wait<OwnStage::kCount - 2>();
    __syncthreads();  // this block is there, and all have done with the one before
    fill(block + OwnStage::kCount - 1);
    multiply_stage<kRows, kE4M3>(code_args.codes, ring + block % OwnStage::kCount * OwnStage::kBytes, block, bytes,
                                 sums);
  }
  copies_wait<0>();
  if (args.layout == LinearLayout::kGateUp) {
    finish_panel<PanelEnd::kGateUp, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  } else {
    finish_panel<PanelEnd::kPlain, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  }
}

template <int kRows, bool kE4M3>
__global__ void __launch_bounds__(kThreads) grouped_codes_portable_kernel(const GroupedCodeArgs args) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 dynamic[];
  __shared__ GroupedWork work;
  __shared__ int sources[kRows];
  cuda::wait_for_predecessors();
  cuda::launch_dependents();  // not before the routing is there: GroupedCall::routing_ready
  list_work<kWarps, kRows>(args.grouped, work);
  for_tiles<1>(args.grouped, work, [&](const GroupedTile& tile) {
    multiply_tile<kRows, kE4M3>(args, tile, shared_address(dynamic), sources);
  });
#else
  __trap();
#endif
}

template <int kRows, bool kE4M3>
void launch_portable(Stream& stream, const GroupedCodeArgs& code_args, int processors) {
  const GroupedArgs& args = code_args.grouped;
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / kRows;  // tiles of rows
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(int64_t{4} * processors, most * args.panels)));
  how.block = dim3(kThreads);
  how.shared_bytes = Stage<kRows, kE4M3>::kCount * Stage<kRows, kE4M3>::kBytes;
  how.early = true;
  cuda::launch(grouped_codes_portable_kernel<kRows, kE4M3>, how, stream, code_args);
}

}  // namespace

void grouped_codes_portable_cuda(Stream& stream, const GroupedCodeArgs& args, int processors) {
  const int mean_rows = args.grouped.likely / args.grouped.spread;
  if (args.codes.bytes) {
    return mean_rows <= 16 ? launch_portable<16, true>(stream, args, processors)
                           : launch_portable<64, true>(stream, args, processors);
  }
  if (mean_rows <= 16) return launch_portable<16, false>(stream, args, processors);
  launch_portable<64, false>(stream, args, processors);
}

}  // namespace volley::ops
