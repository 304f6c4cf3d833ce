// Shared by the kernels of sm_90a for experts of codes: the tiles of grouped_linear_cuda_tiles.cuh, whose weights are
// widened on their way to the matrix unit.
#pragma once

#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"
#include "ops/linear/cuda/linear_cuda_codes_consume.cuh"

namespace volley::ops {

// kCopyWarps: warps that copy weights, stage by stage in turn. kBytes: e4m3 instead of 4-bit codes. kWide: integers of
// more bits.
template <int kPanels_, int kMaxRows_, PanelEnd kEnd_, bool kBytes_ = false,
          int kCopyWarps_ = (kMaxRows_ > 128 ? 1 : 4), bool kWide_ = false>
struct CodeShape : GroupedShape<kPanels_, kMaxRows_, kEnd_> {
  using Base = GroupedShape<kPanels_, kMaxRows_, kEnd_>;
  static constexpr bool kBytes = kBytes_;
  static constexpr int kMostBlockBytes = kBytes ? kMostByteBlock : 2 * most_half_bytes(kWide_);
  static constexpr int kWeightBytes = (kPanels_ * kMostBlockBytes + 1023) / 1024 * 1024;
  static constexpr int kNSideAt = kWeightBytes;
  static constexpr int kStageBytes = kWeightBytes + kMaxRows_ * 128;
  static constexpr int kCopyWarps = kCopyWarps_;
  static constexpr int kThreads = Base::kConsumers + kCopyWarps * 32 + Base::kXThreads, kWarps = kThreads / 32;
  static constexpr int kFitting = ((225 << 10) - 1024 - Base::kOwnBytes) / kStageBytes / kCopyWarps * kCopyWarps;
  static constexpr int kStages = kFitting < 24 ? kFitting : 24;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // the ring starts on 1024
  static_assert(kStageBytes % 1024 == 0 && kStages >= 3);
};

// One thread of each warp that copies calls it. warp: which of them.
template <typename Shape>
__device__ __forceinline__ void copy_codes(const Ring& ring, RingWriter& writer, const GroupedArgs& args,
                                           const CodeKind& codes, const GroupedTile& tile, int warp) {
  using namespace hopper;
  const int panels = tile.panels;
  const int panel_step = Shape::kBytes ? kMostByteBlock : 2 * codes.half_bytes();  // in a stage
  const int64_t panel_bytes = Shape::kBytes ? byte_block_at(args.k_blocks, codes.pairs_share)
                                            : static_cast<int64_t>(args.k_blocks) * panel_step;
  const uint8_t* from = args.weights + tile.expert * args.expert_bytes + tile.panel * panel_bytes;
  const uint64_t policy = tile.alone ? l2_evict_first() : l2_evict_normal();
#pragma unroll 1
  for (int block = 0; block < args.k_blocks; ++block) {
    const bool has_scales = !(Shape::kBytes && codes.pairs_share && block % 2 == 1);
    const int block_bytes = has_scales ? panel_step : kByteCodes;
    if (writer.stage % Shape::kCopyWarps == warp) {
      barrier_wait(&ring.empty[writer.stage], writer.parity);
      barrier_expect(&ring.full[writer.stage], panels * block_bytes);
      uint8_t* to = ring.stages + writer.stage * Shape::kStageBytes;
      for (int p = 0; p < panels; ++p) {
        bulk_copy(to + p * panel_step, from + p * panel_bytes, block_bytes, &ring.full[writer.stage], policy);
      }
    }
    from += block_bytes;
    writer.advance<Shape>();
  }
}

// Adds up a tile over all of k, and gives its last stage back. Reading: how `codes` are read.
template <typename Shape, int kRows, typename Reading>
__device__ __forceinline__ void sum_codes(const Ring& ring, RingReader& reader, const CodeKind& codes, int k_blocks,
                                          float (&sums)[kRows / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t stages = hopper::shared_address(ring.stages);
  const OwnCodes own = Shape::kBytes ? OwnCodes{codes, stages + warp / 4 * kMostByteBlock, warp % 4}
                                     : OwnCodes{codes, stages + warp / 2 * codes.half_bytes(), warp % 2};
  consume_codes_as<GroupedColumns<Shape, kRows>, Reading>(ring, reader, own, k_blocks, sums);
  if (threadIdx.x % 128 == 0) hopper::barrier_arrive(&ring.empty[reader.held]);  // before this tile's end is written
  reader.held = -1;
}

// How experts of codes are copied and multiplied.
template <typename Reading>
struct CodeWeights {
  using Args = GroupedCodeArgs;
  static __host__ __device__ const GroupedArgs& grouped(const Args& args) { return args.grouped; }

  template <typename Shape>
  static __device__ __forceinline__ void copy(const Ring& ring, RingWriter& writer, const Args& args,
                                              const GroupedTile& tile, int warp) {
    copy_codes<Shape>(ring, writer, args.grouped, args.codes, tile, warp);
  }
  template <typename Shape, int kRows>
  static __device__ __forceinline__ void sum(const Ring& ring, RingReader& reader, const Args& args,
                                             float (&sums)[kRows / 2]) {
    sum_codes<Shape, kRows, Reading>(ring, reader, args.codes, args.grouped.k_blocks, sums);
  }
};

}  // namespace volley::ops
