// Grouped products for GPUs without wgmma (sm_80 and later), on the same packed weights and with the same bits:
// mma.sync adds along k as wgmma does, 16 at a time. A block takes one panel for kRows rows at a time; each thread asks
// for 16 bytes at a time (cp.async).
#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"
#include "ops/linear/linear_cuda_fragments.cuh"

namespace volley::ops {
namespace {

using namespace fragments;  // NOLINT: what this file is written in

constexpr int kThreads = 128, kWarps = 4;

template <int kRows>
struct Stage {
  static constexpr int kBytes = static_cast<int>(kBlockBytes) + kRows * 128;
  static constexpr int kCount = 4;
};

// Block `block` of k: a panel's weights as they are, rows of x from their places.
template <int kRows>
__device__ void fill_stage(const GroupedArgs& args, uint32_t stage, const uint8_t* weights, const int* sources,
                           int rows, int block) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = t; i < kBlockBytes / 16; i += kThreads) {
    copy16(stage + i * 16, weights + block * kBlockBytes + i * 16, 16);
  }
#pragma unroll
  for (int i = t; i < kRows * 8; i += kThreads) {
    const int r = i / 8, piece = i % 8, k = block * static_cast<int>(kBlockK) + piece * 8;
    const bool exists = r < rows && k < args.k;
    const int64_t at = exists ? (static_cast<int64_t>(sources[r]) * args.k + k) * 2 : 0;
    copy16(stage + static_cast<int>(kBlockBytes) + swizzled(r, piece), args.x + at, exists ? 16 : 0);
  }
}

// sums of this warp's 16 weight rows and all rows, over one stage.
template <int kRows>
__device__ void multiply_stage(uint32_t stage, float (&sums)[kRows / 2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < kBlockK / 16; k += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_fragments(a[i], stage + swizzled(warp * 16 + lane % 16, (k + i) * 2 + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      uint32_t b[4];  // of both steps of k
      load_fragments(b, stage + static_cast<int>(kBlockBytes) + swizzled(j * 8 + lane % 8, k * 2 + lane / 8));
      float(&d)[4] = reinterpret_cast<float(&)[4]>(sums[4 * j]);
      multiply16(d, a[0], b[0], b[1]);
      multiply16(d, a[1], b[2], b[3]);
    }
  }
}

template <int kRows>
__device__ void multiply_tile(const GroupedArgs& args, const GroupedTile& tile, uint32_t ring, int* sources) {
  __syncthreads();  // nobody reads the ring and the sources of the tile before
  for (int r = static_cast<int>(threadIdx.x); r < tile.rows; r += kThreads) {
    sources[r] = source_row(args, tile.row + r);
  }
  __syncthreads();
  const uint8_t* weights =
      args.weights + tile.expert * args.expert_bytes + static_cast<int64_t>(tile.panel) * args.k_blocks * kBlockBytes;
  const auto fill = [&](int block) {
    if (block < args.k_blocks) {
      fill_stage<kRows>(args, ring + block % Stage<kRows>::kCount * Stage<kRows>::kBytes, weights, sources, tile.rows,
                        block);
    }
    copies_commit();  // also if empty, so that counting groups counts blocks
  };
  float sums[kRows / 2] = {};
  for (int i = 0; i < Stage<kRows>::kCount - 1; ++i) fill(i);
  for (int block = 0; block < args.k_blocks; ++block) {
    copies_wait<Stage<kRows>::kCount - 2>();
    __syncthreads();  // this block is there, and all have done with the one before
    fill(block + Stage<kRows>::kCount - 1);
    multiply_stage<kRows>(ring + block % Stage<kRows>::kCount * Stage<kRows>::kBytes, sums);
  }
  copies_wait<0>();
  if (args.layout == LinearLayout::kGateUp) {
    finish_panel<PanelEnd::kGateUp, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  } else {
    finish_panel<PanelEnd::kPlain, kRows>(args, tile, tile.panel, static_cast<int>(threadIdx.x) / 32, sums);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) grouped_portable_kernel(const GroupedArgs args) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 dynamic[];
  __shared__ GroupedWork work;
  __shared__ int sources[kRows];
  cuda::wait_for_predecessors();
  cuda::launch_dependents();  // not before the routing is there: GroupedCall::routing_ready
  list_work<kWarps, kRows>(args, work);
  for_tiles<1>(args, work,
               [&](const GroupedTile& tile) { multiply_tile<kRows>(args, tile, shared_address(dynamic), sources); });
#else
  __trap();
#endif
}

template <int kRows>
void launch_portable(Stream& stream, const GroupedArgs& args, int processors) {
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / kRows;  // tiles of rows
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(int64_t{4} * processors, most * args.panels)));
  how.block = dim3(kThreads);
  how.shared_bytes = Stage<kRows>::kCount * Stage<kRows>::kBytes;
  how.early = true;
  cuda::launch(grouped_portable_kernel<kRows>, how, stream, args);
}

}  // namespace

void grouped_portable_cuda(Stream& stream, const GroupedArgs& args, int processors) {
  const int mean_rows = args.likely / args.spread;
  if (mean_rows <= 16) return launch_portable<16>(stream, args, processors);
  launch_portable<64>(stream, args, processors);
}

}  // namespace volley::ops
