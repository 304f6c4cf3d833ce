// Grouped products for GPUs without wgmma (sm_80 and later), on the same packed weights and with the same bits:
// mma.sync adds along k as wgmma does, 16 at a time. A block takes one panel for kRows rows at a time; each thread asks
// for 16 bytes at a time (cp.async).
//
// Weights says how weights are stored; each thread makes one for a tile. It has:
//   Args, grouped(args)     what the kernel takes, and the call in it
//   kMostBytes              of a panel's block
//   block_at(block)         bytes of a panel before block `block`
//   fill<kThreads>(stage, panel, block)  copies a block of the panel
//   multiply(stage, block, sums)  adds the products of this warp's 16 weight rows and all rows, over one stage
#pragma once

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"
#include "ops/linear/cuda/linear_cuda_fragments.cuh"

namespace volley::ops {

template <typename Weights_, int kRows_>
struct GroupedPortableShape {
  using Weights = Weights_;
  static constexpr int kRows = kRows_;
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kStageBytes = Weights::kMostBytes + kRows * 128, kStages = 4;
};

template <typename Shape>
__device__ void multiply_tile_portably(const typename Shape::Weights::Args& own_args, const GroupedTile& tile,
                                       uint32_t ring, int* sources) {
  using namespace fragments;
  using Weights = typename Shape::Weights;
  const GroupedArgs& args = Weights::grouped(own_args);
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();  // no thread still reads the ring and the sources of the tile before
  for (int r = t; r < tile.rows; r += Shape::kThreads) sources[r] = source_row(args, tile.expert, tile.row + r);
  __syncthreads();
  Weights weights(own_args);
  const uint8_t* panel = args.weights + tile.expert * args.expert_bytes + tile.panel * weights.block_at(args.k_blocks);
  const auto stage_of = [&](int block) { return ring + block % Shape::kStages * Shape::kStageBytes; };
  const auto fill = [&](int block) {
    if (block < args.k_blocks) {
      weights.template fill<Shape::kThreads>(stage_of(block), panel, block);
      copy_rows<Shape::kRows, Shape::kThreads>(stage_of(block) + Weights::kMostBytes, args.x, args.k, args.x_step,
                                               block * static_cast<int>(kBlockK), t,
                                               [&](int r) { return r < tile.rows ? sources[r] : -1; });
    }
    copies_commit();  // also if empty, so that counting groups counts blocks
  };
  float sums[Shape::kRows / 2] = {};
  for (int i = 0; i < Shape::kStages - 1; ++i) fill(i);
  for (int block = 0; block < args.k_blocks; ++block) {
    copies_wait<Shape::kStages - 2>();
    __syncthreads();  // this block is there, and all have done with the one before
    fill(block + Shape::kStages - 1);
    weights.multiply(stage_of(block), block, reinterpret_cast<float(&)[Shape::kRows / 8][4]>(sums));
  }
  copies_wait<0>();
  if (args.layout == LinearLayout::kGateUp) {
    finish_panel<PanelEnd::kGateUp, Shape::kRows>(args, tile, tile.panel, t / 32, sums);
  } else {
    finish_panel<PanelEnd::kPlain, Shape::kRows>(args, tile, tile.panel, t / 32, sums);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    grouped_portable_kernel(const typename Shape::Weights::Args own_args) {
#if __CUDA_ARCH__ >= 800
  const GroupedArgs& args = Shape::Weights::grouped(own_args);
  extern __shared__ uint4 dynamic[];
  __shared__ GroupedWork work;
  __shared__ int sources[Shape::kRows];
  cuda::wait_for_predecessors();
  cuda::launch_dependents();  // only after the routing is complete: GroupedCall::routing_ready
  list_work<Shape::kWarps, Shape::kRows>(args, work);
  for_tiles<1>(args, work, [&](const GroupedTile& tile) {
    multiply_tile_portably<Shape>(own_args, tile, fragments::shared_address(dynamic), sources);
  });
#else
  __trap();
#endif
}

template <typename Shape>
void launch_grouped_portable(Stream& stream, const typename Shape::Weights::Args& own_args, int processors) {
  const GroupedArgs& args = Shape::Weights::grouped(own_args);
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / Shape::kRows;  // tiles of rows
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(int64_t{4} * processors, most * args.panels)));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kStages * Shape::kStageBytes;
  how.early = true;
  cuda::launch(grouped_portable_kernel<Shape>, how, stream, own_args);
}

template <typename Weights>
void multiply_experts_portably(Stream& stream, const typename Weights::Args& own_args, int processors) {
  const GroupedArgs& args = Weights::grouped(own_args);
  if (args.likely / args.spread <= 16) {  // rows of an expert in the mean
    return launch_grouped_portable<GroupedPortableShape<Weights, 16>>(stream, own_args, processors);
  }
  launch_grouped_portable<GroupedPortableShape<Weights, 64>>(stream, own_args, processors);
}

}  // namespace volley::ops
