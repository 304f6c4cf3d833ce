// Shared by the parts of the attention kernel for sm_90a: the shape of a block, its shared memory, and the order of its
// items.
#pragma once

#include "device/cuda/hopper.cuh"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {

constexpr int kItemRing = 8;    // items that a block keeps in shared memory
constexpr int kItemsAhead = 4;  // how many items ahead it fetches
constexpr int kCopyRows = 16;   // positions of one copy: a page is a multiple of it

// full: of each kCopyRows of a tile.
template <int kBytes, int kSlots>
struct CodeSlots {
  alignas(128) uint8_t tiles[kSlots][kBytes];
  uint64_t full[kSlots][kTilePositions / kCopyRows];
};
template <int kBytes>
struct CodeSlots<kBytes, 0> {};

// kCodes: the cache holds e4m3 codes, which attention_hopper_codes_cuda.cuh widens on their way into the ring. Codes
// are first copied into a ring of their own, which takes a quarter of the memory. kRowSets: warpgroups that have
// kTileRows each of the block's query rows; with two, no tile may be cut.
template <int kHeadDim_, bool kCodes_ = false, int kRowSets_ = 1>
struct HopperShape {
  static constexpr int kHeadDim = kHeadDim_, kKeyDim = kHeadDim, kOperands = 2;  // K and V
  static constexpr bool kCodes = kCodes_;
  static constexpr int kHalves = kHeadDim > 128 ? 2 : 1;  // parts of the outputs, a warpgroup each
  static constexpr int kRowSets = kRowSets_, kRows = kTileRows * kRowSets;
  static constexpr int kComputeThreads = 128 * kHalves * kRowSets;
  static_assert(kRowSets == 1 || (kHalves == 1 && !kCodes));
  // One more warpgroup for the copying warp: registers can only be handed over by whole warpgroups.
  static constexpr int kThreads = kComputeThreads + 128;
  // All warps share the registers that a block starts with, 128 or 168 a thread. With codes the number avoids spills
  // (ptxas -v).
  static constexpr int kCopyRegisters = !kCodes ? 32 : kHeadDim == 128 ? 40 : 56;
  static constexpr int kComputeRegisters =
      kComputeThreads == 128 ? 256 - kCopyRegisters : (3 * 168 - kCopyRegisters) / 16 * 8;
  static constexpr int kBlocks = kRowSets > 1 ? 1 : attention_blocks_per_multiprocessor(kHeadDim);
  static constexpr int kGroupBytes = 8 * kHeadDim * 2;  // 8 positions, or query rows
  static constexpr int kTileBytes = kTilePositions * kHeadDim * 2;
  static constexpr int kTileRoom = kHeadDim == 64 || kRowSets > 1 ? 8 : 4;  // tiles of K or V that there is room for
  static constexpr int kSlots = kCodes ? kTileRoom / 4 * 3 : kTileRoom;     // slots of the ring, a tile each
  static constexpr int kCodeSlots = kCodes ? kTileRoom / 2 : 0;  // slots of the ring of codes, half the bytes each
  static constexpr int kFillers = kCodes ? 128 : 1;              // threads that report a slot as full
  static constexpr int kOutputs = kHeadDim / kHalves / 8;        // matrices of 8 outputs, a warp

  struct Shared {
    alignas(1024) uint8_t q[kRowSets * kTileBytes];
    uint8_t slots[kSlots][kTileBytes];
    float4 merged[kOutputs][kComputeThreads];
    WorkItem items[kItemRing];
    uint64_t full[kSlots], empty[kSlots];
    uint32_t shares[2];  // shares of merging that this block takes: of this split item, and of the next
    CodeSlots<kTileBytes / 2, kCodeSlots> codes;
  };
};

// A position in a ring.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void next(int steps = 1) {
    slot += steps;
    if (slot >= kSlots) slot -= kSlots, parity ^= 1;
  }
};

// The block's next unit (item and KV head): back and forth, so that no block gets the larger unit of every wave.
__device__ inline int32_t unit_of(int32_t index) {
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  return index * blocks + (index % 2 == 0 ? block : blocks - 1 - block);
}

// The item of a unit, or the last that there is room for. Items beyond the existing ones are read but not used, so that
// the first item and the number of items can be read at the same time.
__device__ inline const WorkItem& item_of(const TilesArgs& args, int32_t unit) {
  return args.items[min(args.units_of_item.divide(unit), args.max_items - 1)];
}

// The data of an item that copying warps need.
struct CopyItem {
  int2 range;
  int32_t slot, written;
};
__device__ inline CopyItem read_item(const TilesArgs& args, int32_t index) {
  const WorkItem& item = item_of(args, unit_of(index));
  return {*reinterpret_cast<const int2*>(&item.begin), item.slot, item.written};
}

// A barrier among the warps that compute.
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
