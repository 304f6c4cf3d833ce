// Grouped products with 4-bit codes for GPUs without wgmma (sm_80 and later): the kernel of
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

template <int kRows>
struct Stage {
  static constexpr int kWeightBytes = 2 * code_half_bytes(kMostCodeWords);
  static constexpr int kBytes = kWeightBytes + kRows * 128;
  static constexpr int kCount = 4;
};

// Block `block` of k: a panel's codes as they are, rows of x from their places.
template <int kRows>
__device__ void fill_stage(const GroupedArgs& args, int block_bytes, uint32_t stage, const uint8_t* weights,
                           const int* sources, int rows, int block) {
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < block_bytes / 16; i += kThreads) {
    copy16(stage + i * 16, weights + static_cast<int64_t>(block) * block_bytes + i * 16, 16);
  }
#pragma unroll
  for (int i = t; i < kRows * 8; i += kThreads) {
    const int r = i / 8, piece = i % 8, k = block * static_cast<int>(kBlockK) + piece * 8;
    const bool exists = r < rows && k < args.k;
    const int64_t at = exists ? (static_cast<int64_t>(sources[r]) * args.k + k) * 2 : 0;
    copy16(stage + Stage<kRows>::kWeightBytes + swizzled(r, piece), args.x + at, exists ? 16 : 0);
  }
}

// sums of this warp's 16 weight rows and all rows, over one stage.
template <int kRows>
__device__ void multiply_stage(const CodeKind& codes, uint32_t stage, float (&sums)[kRows / 2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t a[4][4];
  widen_half(codes, stage + warp / 2 * code_half_bytes(codes.words), warp % 2, a);
#pragma unroll
  for (int k = 0; k < kBlockK / 16; k += 2) {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      uint32_t b[4];  // of both steps of k
      load_fragments(b, stage + Stage<kRows>::kWeightBytes + swizzled(j * 8 + lane % 8, k * 2 + lane / 8));
      float(&d)[4] = reinterpret_cast<float(&)[4]>(sums[4 * j]);
      multiply16(d, a[k], b[0], b[1]);
      multiply16(d, a[k + 1], b[2], b[3]);
    }
  }
}

template <int kRows>
__device__ void multiply_tile(const GroupedCodeArgs& code_args, const GroupedTile& tile, uint32_t ring, int* sources) {
  const GroupedArgs& args = code_args.grouped;
  const int block_bytes = 2 * code_half_bytes(code_args.codes.words);
  __syncthreads();  // nobody reads the ring and the sources of the tile before
  for (int r = static_cast<int>(threadIdx.x); r < tile.rows; r += kThreads) {
    sources[r] = source_row(args, tile.row + r);
  }
  __syncthreads();
  const uint8_t* weights =
      args.weights + tile.expert * args.expert_bytes + static_cast<int64_t>(tile.panel) * args.k_blocks * block_bytes;
  const auto fill = [&](int block) {
    if (block < args.k_blocks) {
      fill_stage<kRows>(args, block_bytes, ring + block % Stage<kRows>::kCount * Stage<kRows>::kBytes, weights, sources,
                        tile.rows, block);
    }
    copies_commit();  // also if empty, so that counting groups counts blocks
  };
  float sums[kRows / 2] = {};
  for (int i = 0; i < Stage<kRows>::kCount - 1; ++i) fill(i);
  for (int block = 0; block < args.k_blocks; ++block) {
    copies_wait<Stage<kRows>::kCount - 2>();
    __syncthreads();  // this block is there, and all have done with the one before
    fill(block + Stage<kRows>::kCount - 1);
    multiply_stage<kRows>(code_args.codes, ring + block % Stage<kRows>::kCount * Stage<kRows>::kBytes, sums);
  }
  copies_wait<0>();
  if (args.layout == LinearLayout::kGateUp) {
    finish_panel<PanelEnd::kGateUp, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  } else {
    finish_panel<PanelEnd::kPlain, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) grouped_codes_portable_kernel(const GroupedCodeArgs args) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 dynamic[];
  __shared__ GroupedWork work;
  __shared__ int sources[kRows];
  cuda::wait_for_predecessors();
  cuda::launch_dependents();  // not before the routing is there: GroupedCall::routing_ready
  list_work<kWarps, kRows>(args.grouped, work);
  for_tiles<1>(args.grouped, work,
               [&](const GroupedTile& tile) { multiply_tile<kRows>(args, tile, shared_address(dynamic), sources); });
#else
  __trap();
#endif
}

template <int kRows>
void launch_portable(Stream& stream, const GroupedCodeArgs& code_args, int processors) {
  const GroupedArgs& args = code_args.grouped;
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / kRows;  // tiles of rows
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(int64_t{4} * processors, most * args.panels)));
  how.block = dim3(kThreads);
  how.shared_bytes = Stage<kRows>::kCount * Stage<kRows>::kBytes;
  how.early = true;
  cuda::launch(grouped_codes_portable_kernel<kRows>, how, stream, code_args);
}

}  // namespace

void grouped_codes_portable_cuda(Stream& stream, const GroupedCodeArgs& args, int processors) {
  const int mean_rows = args.grouped.entry_count / args.grouped.experts;
  if (mean_rows <= 16) return launch_portable<16>(stream, args, processors);
  launch_portable<64>(stream, args, processors);
}

}  // namespace volley::ops
