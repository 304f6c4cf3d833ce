// What the parts of the attention kernel for sm_90a share: the shape of a block, its shared memory, and whose turn it
// is.
#pragma once

#include "device/cuda/hopper.cuh"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {

constexpr int kItemRing = 8;    // items that a block keeps at hand
constexpr int kItemsAhead = 4;  // how far ahead it fetches them
constexpr int kCopyRows = 16;   // positions of one copy: a page is a multiple of it

template <int kHeadDim_>
struct HopperShape {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHalves = kHeadDim > 128 ? 2 : 1;  // of the outputs, a warpgroup each
  static constexpr int kComputeThreads = 128 * kHalves;
  // One more warpgroup for the copying warp: registers can only be handed over by whole warpgroups.
  static constexpr int kThreads = kComputeThreads + 128;
  static constexpr int kCopyRegisters = 32, kComputeRegisters = kHalves == 1 ? 224 : 232;
  static constexpr int kBlocks = attention_blocks_per_multiprocessor(kHeadDim);
  static constexpr int kGroupBytes = 8 * kHeadDim * 2;  // 8 positions, or query rows
  static constexpr int kTileBytes = kTilePositions * kHeadDim * 2;
  static constexpr int kSlots = kHeadDim == 64 ? 8 : 4;              // of the ring, a tile of K or V each
  static constexpr int kPieces = kTileBytes / 16 / kComputeThreads;  // of 16 bytes, a thread
  static constexpr int kOutputs = kHeadDim / kHalves / 8;            // matrices of 8 outputs, a warp

  struct Shared {
    alignas(1024) uint8_t q[kTileBytes];
    uint8_t slots[kSlots][kTileBytes];
    float4 merged[kOutputs][kComputeThreads];
    WorkItem items[kItemRing];
    uint64_t full[kSlots], empty[kSlots];
    uint32_t shares[2];  // of a tile's merging, those that this block takes: of this split item, and of the next
  };
};

// Which unit (item and KV head) is a block's next: back and forth, so that no block gets the larger of every wave.
__device__ inline int32_t unit_of(int32_t index) {
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  return index * blocks + (index % 2 == 0 ? block : blocks - 1 - block);
}

// The item of a unit, or of the last there is room for: what lies past the items there are is read and not used, so
// that the first item and their number are on their way together.
__device__ inline const WorkItem& item_of(const TilesArgs& args, int32_t unit) {
  return args.items[min(args.units_of_item.divide(unit), args.max_items - 1)];
}

// Among the warps that compute.
template <typename Shape>
__device__ void compute_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kComputeThreads) : "memory");
}
template <typename Shape>
__device__ bool compute_sync_or(bool value) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.b32 mine, %1, 0;\n"
      "bar.red.or.pred any, 1, %2, mine;\n"
      "selp.b32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<int>(value)), "n"(Shape::kComputeThreads)
      : "memory");
  return any != 0;
}

}  // namespace volley::ops
