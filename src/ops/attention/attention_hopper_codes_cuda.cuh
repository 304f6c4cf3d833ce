// How K and V come into the ring of attention_hopper_cuda.cuh where the cache holds e4m3 codes.
//
// Each of the four warps beside those that multiply sees to 16 positions of every tile. The copy engine brings their
// codes into a ring of code slots. As soon as the last readers of the ring's next slot are done, the warp widens its
// codes into that slot, and then starts the copy of the next codes to the same place. A full slot holds the same bytes
// as with a bf16 cache of these values.
#pragma once

#include "device/cuda/dependent.cuh"
#include "ops/attention/attention_codes_cuda.cuh"
#include "ops/attention/attention_hopper_block_cuda.cuh"
#include "ops/attention/warpgroup_products.cuh"

namespace volley::ops {

template <typename Shape>
__device__ void init_codes(typename Shape::Shared& shared) {
  for (auto& slot : shared.codes.full) {
    for (uint64_t& part : slot) hopper::barrier_init(&part, 1);
  }
}

// The next copy of a warp: its positions of K, then of V, of the tiles of all units in turn. All lanes hold the same
// values.
template <typename Shape>
struct CodeCopies {
  static constexpr uint32_t kBytes = kCopyRows * Shape::kHeadDim;

  const TilesArgs& args;
  typename Shape::Shared& shared;
  int32_t units;
  CopyItem item;
  int part;  // which kCopyRows positions of a tile
  uint64_t policy;
  int32_t index = 0;               // index among this block's units
  int32_t position = 0, page = 0;  // the tile's position; the page with this warp's positions
  bool is_v = false;
  bool waited = false;

  __device__ bool exist() const { return unit_of(index) < units; }
  // Whether any row of the item sees one of the positions from `at` on. Positions that no row sees may have no page.
  __device__ bool wanted(int32_t at) const { return at + kCopyRows > item.range.x && at < item.range.y; }
  __device__ void find_page() {
    const int32_t at = position + part * kCopyRows;
    page = 0;
    if (!wanted(at)) return;
    page = args.pages[item.slot][args.page_size.divide(at)];
  }
  __device__ void begin_unit() {
    if (!exist()) return;
    position = item.range.x / kTilePositions * kTilePositions;
    find_page();
  }
  __device__ void advance() {
    is_v = !is_v;
    if (is_v) return;
    position += kTilePositions;
    if (position < item.range.y) return find_page();
    ++index;
    item = read_item(args, index);
    begin_unit();
  }
  // Starts the next copy, into a slot of codes that no thread reads. If no row sees these positions, nothing is copied:
  // the slot's old bytes are widened, and then hidden like all invisible positions. REQUIRES: exist().
  __device__ void start(int slot) {
    if (!waited && position + kTilePositions > item.written) {
      cuda::wait_for_predecessors();  // new K and V come from there
      waited = true;
    }
    const int32_t at = position + part * kCopyRows;
    const bool copies = wanted(at);
    if (copies && page < 0) __trap();
    if (threadIdx.x % 32 == 0) {
      const int64_t kv_head = args.units_of_item.remainder(unit_of(index));
      const uint8_t* from = args.kv + page * args.page_stride + (kv_head * 2 + is_v) * args.head_bytes +
                            args.page_size.remainder(at) * Shape::kHeadDim;
      uint64_t* full = &shared.codes.full[slot][part];
      hopper::barrier_expect(full, copies ? kBytes : 0);
      if (copies) hopper::bulk_copy(shared.codes.tiles[slot] + part * kBytes, from, kBytes, full, policy);
    }
    advance();
  }
};

// Called by a warp: copies kBytes codes.
template <int kBytes>
__device__ void widen_codes(uint8_t* to, const uint8_t* from) {
  constexpr int kAtOnce = 4, kStep = 32 * static_cast<int>(sizeof(uint2));
  static_assert(kBytes % (kAtOnce * kStep) == 0);
  const int lane = threadIdx.x % 32;
  from += lane * sizeof(uint2);
  to += lane * sizeof(uint4);
#pragma unroll 1
  for (int at = 0; at < kBytes; at += kAtOnce * kStep) {
    uint2 codes[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) codes[i] = *reinterpret_cast<const uint2*>(from + at + i * kStep);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) *reinterpret_cast<uint4*>(to + 2 * (at + i * kStep)) = widen_piece(codes[i]);
  }
}

// The four warps that copy and widen.
template <typename Shape>
__device__ void produce_from_codes(const TilesArgs& args, typename Shape::Shared& shared, int32_t units,
                                   CopyItem first) {
  constexpr int kBytes = CodeCopies<Shape>::kBytes;
  static_assert(kTilePositions / kCopyRows * 32 == Shape::kFillers);
  const int part = (threadIdx.x - Shape::kComputeThreads) / 32;
  const uint64_t policy = args.shared_by_tiles ? hopper::l2_evict_normal() : hopper::l2_evict_first();
  CodeCopies<Shape> copies = {args, shared, units, first, part, policy};
  copies.begin_unit();
  int coming = 0;  // copies that have been started, and not yet widened
  while (coming < Shape::kCodeSlots && copies.exist()) copies.start(coming++);
  RingPlace<Shape::kCodeSlots> codes;
  RingPlace<Shape::kSlots> place;
  while (coming > 0) {
    hopper::barrier_wait(&shared.codes.full[codes.slot][part], codes.parity);
    hopper::barrier_wait(&shared.empty[place.slot], place.parity ^ 1);  // returns at once while slots are new
    widen_codes<kBytes>(shared.slots[place.slot] + part * 2 * kBytes, shared.codes.tiles[codes.slot] + part * kBytes);
    share_writes();
    hopper::barrier_arrive(&shared.full[place.slot]);
    __syncwarp();  // all lanes have read their codes
    if (copies.exist()) {
      copies.start(codes.slot);
    } else {
      --coming;
    }
    codes.next();
    place.next();
  }
}

}  // namespace volley::ops
