// Attention over swizzled pages on sm_90a: the copy engine brings K and V, a warpgroup multiplies. Values are those of
// attention_portable_cuda.cuh, bit for bit.
//
// A block takes items (attention_cuda_work.cuh) one after the other. A warp of its own keeps a ring of slots in shared
// memory full: K and V of one tile after the other, across items, each as soon as the slot's last readers are done.
// (While a warp that also multiplies did that, a tile took twice as long.) Four warps hold 16 query rows each. While
// they turn the scores of a tile into probabilities, the matrix unit makes the scores of the next tile and adds the
// values of the one before. The outputs of merged chunks wait in shared memory, where every lane has a place of its
// own. With head_dim 256 a second warpgroup computes the same scores for the other half of the outputs.
#pragma once

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_hopper_codes_cuda.cuh"
#include "ops/attention/attention_hopper_merge_cuda.cuh"
#include "ops/attention/warpgroup_products.cuh"

namespace volley::ops {

// The copying warp of a bf16 cache: K and V (latents: K) of the tiles of all units in turn. Lane i < 4 copies positions
// 16 i … of a tile.
template <typename Shape>
__device__ void produce(const TilesArgs& args, typename Shape::Shared& shared, int32_t units, CopyItem item) {
  constexpr uint32_t kCopyBytes = kCopyRows * Shape::kKeyDim * 2;
  const int lane = threadIdx.x % 32;
  const uint64_t policy = args.shared_by_tiles ? hopper::l2_evict_normal() : hopper::l2_evict_first();
  RingPlace<Shape::kSlots> place;
  bool refill = false;  // all slots have been filled once
  bool waited = false;
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    const int kv_head = args.units_of_item.remainder(unit_of(index));
    const uint8_t* head = args.kv + static_cast<int64_t>(kv_head) * 2 * args.head_bytes;
    const int32_t* pages = args.pages[item.slot];
    const int32_t begin = item.range.x / kCopyRows * kCopyRows,
                  end = (item.range.y + kCopyRows - 1) / kCopyRows * kCopyRows;
    const auto find = [&](int32_t at) {
      return lane < 4 && at >= begin && at < end ? pages[args.page_size.divide(at)] : 0;
    };
    int32_t position = begin / kTilePositions * kTilePositions;
    int32_t page = find(position + lane * kCopyRows);
    for (; position < end; position += kTilePositions) {
      if (!waited && position + kTilePositions > item.written) {
        cuda::wait_for_predecessors();  // new K and V come from there
        waited = true;
      }
      const int32_t at = position + lane * kCopyRows;
      const bool copies = lane < 4 && at >= begin && at < end;
      const uint32_t bytes =
          static_cast<uint32_t>(min(position + kTilePositions, end) - max(position, begin)) / kCopyRows * kCopyBytes;
      const int32_t next_page = find(at + kTilePositions);
      if (copies && page < 0) __trap();
      const uint8_t* from =
          head + page * args.page_stride + (copies ? args.page_size.remainder(at) : 0) / 8 * Shape::kGroupBytes;
#pragma unroll 1
      for (int v = 0; v < Shape::kOperands; ++v, from += args.head_bytes) {
        if (refill) hopper::barrier_wait(&shared.empty[place.slot], place.parity ^ 1);
        uint64_t* full = &shared.full[place.slot];
        if (lane == 0) hopper::barrier_expect(full, bytes);
        if (copies) hopper::bulk_copy(shared.slots[place.slot] + lane * kCopyBytes, from, kCopyBytes, full, policy);
        place.next();
        if (place.slot == 0) refill = true;
      }
      page = next_page;
    }
    item = read_item(args, index + 1);  // not earlier: registers are scarce
  }
}

template <typename Shape>
__device__ void fetch_item(const TilesArgs& args, typename Shape::Shared& shared, int32_t index) {
  if (threadIdx.x >= sizeof(WorkItem) / 16) return;
  const uint32_t to = hopper::shared_address(&shared.items[index % kItemRing]) + threadIdx.x * 16;
  const auto* from = reinterpret_cast<const uint8_t*>(&item_of(args, unit_of(index)));
  copy_or_zero(to, from + threadIdx.x * 16, true);
}

template <typename Shape>
__device__ void copy_q(const TilesArgs& args, typename Shape::Shared& shared, const WorkItem& item, int kv_head) {
  constexpr int kRowPieces = Shape::kKeyDim / 8, kPieces = Shape::kRows * kRowPieces / Shape::kComputeThreads;
  const int first = item.first, count = item.count;
  const uint32_t to = hopper::shared_address(shared.q);
  const __nv_bfloat16* from =
      args.q +
      (static_cast<int64_t>(item.row) * args.heads + kv_head * static_cast<int>(args.group.by)) * Shape::kKeyDim;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    constexpr bool kWholeRows = Shape::kComputeThreads % kRowPieces == 0;
    const uint32_t piece = threadIdx.x + (kWholeRows ? 0 : i * Shape::kComputeThreads);
    const int row = static_cast<int>(piece / kRowPieces) + (kWholeRows ? i * Shape::kComputeThreads / kRowPieces : 0);
    const int column = static_cast<int>(piece % kRowPieces);
    const bool exists = row < count;
    const int query = first + (exists ? row : 0);
    const int batch_row = args.group.divide(query), head = query - batch_row * static_cast<int>(args.group.by);
    copy_or_zero(to + static_cast<uint32_t>(kv_swizzled_bytes(Shape::kKeyDim, row, column)),
                 from + static_cast<int64_t>(batch_row * args.heads + head) * Shape::kKeyDim + column * 8, exists);
  }
}

// Zeros the positions of a V tile that no row sees. Returns whether a position that only some rows see has an infinity
// or NaN.
template <typename Shape>
__device__ bool clean_values(uint8_t* tile, int32_t position, const WorkItem& item) {
  bool found = false;
  // Read once for all pieces, because the compiler must assume that a store to a piece changes the item.
  const int32_t begin = item.begin, end = item.end, all_begin = item.all_begin, all_end = item.all_end;
#pragma unroll 1
  for (int piece = threadIdx.x; piece < Shape::kTileBytes / 16; piece += Shape::kComputeThreads) {
    const int32_t p = position + piece / (Shape::kGroupBytes / 16) * 8 + piece / 8 % 8;
    uint4& x = *reinterpret_cast<uint4*>(tile + piece * 16);
    if (p >= all_begin && p < all_end) continue;
    if (p < begin || p >= end) {
      x = {0, 0, 0, 0};
      continue;
    }
    const uint4 v = x;
    for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
      found |= (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
    }
  }
  share_writes();
  return found;
}

// Zeros a V tile that all have read.
template <typename Shape>
__device__ void clear_values(uint8_t* tile) {
  compute_sync<Shape>();
#pragma unroll 1
  for (int piece = threadIdx.x; piece < Shape::kTileBytes / 16; piece += Shape::kComputeThreads) {
    *reinterpret_cast<uint4*>(tile + piece * 16) = {0, 0, 0, 0};
  }
  share_writes();
  compute_sync<Shape>();
}

template <typename Shape>
__device__ void begin_scores(float (&s)[kScoreTiles][4], const uint8_t* q, const uint8_t* k) {
  const uint64_t a = swizzled_operand(hopper::shared_address(q), Shape::kGroupBytes, 0);
  const uint64_t b = swizzled_operand(hopper::shared_address(k), Shape::kGroupBytes, 0);
  hopper::products_begin();
#pragma unroll
  for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
    const uint32_t at = (step / 4 * 1024 + step % 4 * 32) >> 4;
    multiply_rows(s, a + at, b + at, step > 0);
  }
  hopper::products_commit();
}

template <typename Shape>
__device__ __forceinline__ void multiply_values(const uint32_t (&p)[kScoreTiles][2], const uint8_t* v, int half,
                                                RowState<Shape>& state) {
  const uint64_t b = swizzled_operand(hopper::shared_address(v) + half * 2048, Shape::kGroupBytes, 1024);
  hopper::products_begin();
#pragma unroll
  for (int step = 0; step < kTilePositions / 16; ++step) {
    multiply_columns(state.outputs, p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1],
                     b + (step * 2 * Shape::kGroupBytes >> 4));
  }
}

// Tells the compiler that the value is the same in all lanes of a warp.
__device__ inline int32_t uniform(int32_t x) {
  return __shfl_sync(0xffffffff, x, 0);
}

// The state of the computing warps for an item.
template <typename Shape>
struct ItemRun {
  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  int kv_head;
  RingPlace<Shape::kSlots> k, v;  // slots of the tiles that are multiplied next, for scores and for values

  int32_t all_begin, all_end;  // the item's, in registers
  int row;                     // this lane's first row of the tile
  bool active;                 // the warp has rows
  int partial;                 // index in the tile of the item's next one
  bool first_chunk = true;

  __device__ int half() const { return Shape::kRowSets > 1 ? 0 : threadIdx.x / 128; }
  __device__ float4& merged(int j) const { return shared.merged[j][threadIdx.x]; }
  __device__ bool edge(int32_t position) const {
    return uniform(position < all_begin || position + kTilePositions > all_end);
  }
  // Gives the slot back to the copying warp, and moves two slots on. All lanes arrive. One arrival for the warp, after
  // __syncwarp(), would be right and is as fast, but racecheck does not see that the other lanes' reads come before.
  __device__ void release(RingPlace<Shape::kSlots>& place) {
    hopper::barrier_arrive(&shared.empty[place.slot]);
    place.next(2);
  }

  __device__ void attend(const RowRanges& visible);
  __device__ void score_tile(float (&s)[kScoreTiles][4]) {
    hopper::barrier_wait(&shared.full[k.slot], k.parity);
    const int set = Shape::kRowSets > 1 ? threadIdx.x / 128 : 0;
    begin_scores<Shape>(s, shared.q + set * Shape::kTileBytes, shared.slots[k.slot]);
  }
  __device__ __forceinline__ void weigh(float (&s)[kScoreTiles][4], int32_t position, RowState<Shape>& state,
                                        uint32_t (&p)[kScoreTiles][2], float (&factor)[2]) {
    factor[0] = factor[1] = 1.0f;
#pragma unroll
    for (auto& pair : p) pair[0] = pair[1] = 0;
    if (!active) return;
    if (edge(position)) hide_scores(s, state, position);
    update_probabilities(s, args.scale_log2, state, p, factor);
  }
  // Waits for the values of a tile and makes them fit for multiply_values(). If they cannot be, adds them here and
  // leaves zeros in their place.
  __device__ __forceinline__ void prepare_values(const uint32_t (&p)[kScoreTiles][2], int32_t position,
                                                 RowState<Shape>& state) {
    uint8_t* values = shared.slots[v.slot];
    hopper::barrier_wait(&shared.full[v.slot], v.parity);
    if (!edge(position)) return;
    if (!uniform(compute_sync_or<Shape>(clean_values<Shape>(values, position, item)))) return;
    multiply_seen_values<Shape>(Probabilities{p}, hopper::shared_address(values), half(), position, state);
    clear_values<Shape>(values);
  }
  __device__ void end_chunk(bool last, RowState<Shape>& state);
};

// Merges a closed chunk of a run of items, or stores it.
template <typename Run, typename Shape>
__device__ __forceinline__ void fold_chunk(Run& run, bool last, RowState<Shape>& state) {
  if (!run.active) return;  // the warp has no rows: half of them with 8 rows of 4 heads
  const WorkItem& item = run.item;
  if (item.folded && !run.first_chunk) {
    state.merge_chunk([&](int j) { return run.merged(j); });
  } else {
    state.begin_merging();
  }
  run.first_chunk = false;
  if (item.folded && !last) {
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; ++j) run.merged(j) = state.output(j);
    return;
  }
  if (last && item.partial < 0) {
    store_result<Shape>(run.args, item, run.kv_head, run.row, run.half(), state);
    return;
  }
  store_partial<Shape>(run.args, item, run.kv_head, run.partial++, state);
}

// The steps that remain where a chunk ends.
template <typename Shape>
__device__ __forceinline__ void ItemRun<Shape>::end_chunk(bool last, RowState<Shape>& state) {
  state.close_chunk();
  fold_chunk(*this, last, state);
}

// Products run behind: the values of a tile are added while the scores of the next are turned into probabilities. No
// sums may be read while any products are under way (the compiler then makes every product wait for the one before).
template <typename Shape>
__device__ void ItemRun<Shape>::attend(const RowRanges& visible) {
  RowState<Shape> state;
  state.visible = visible;
  state.clear_merged();
  state.clear_chunk();
  const int32_t end = uniform(item.end), shift = uniform(item.shift);
  int32_t position = uniform(item.begin) / kTilePositions * kTilePositions;
  int32_t chunk_stop = chunk_end(position, shift);
  float s[kScoreTiles][4], factor[2];
  uint32_t p[kScoreTiles][2];
  score_tile(s);
  hopper::products_wait<0>();
  settle(s);
  release(k);
  weigh(s, position, state, p, factor);
  for (; position + kTilePositions < end; position += kTilePositions) {
    prepare_values(p, position, state);
    settle(p);
    settle(state.outputs);
    score_tile(s);
    multiply_values<Shape>(p, shared.slots[v.slot], half(), state);
    hopper::products_commit();
    hopper::products_wait<1>();
    settle(s);
    release(k);
    const int32_t next = position + kTilePositions;
    if (next >= chunk_stop) {
      hopper::products_wait<0>();
      settle(state.outputs);
      end_chunk(false, state);
      state.clear_chunk();
      chunk_stop = chunk_end(next, shift);
    }
    uint32_t fresh[kScoreTiles][2];
    weigh(s, next, state, fresh, factor);
    hopper::products_wait<0>();
    settle(state.outputs);
    settle(p);  // in use until here: `fresh` must not share its registers
    release(v);
    scale_outputs(factor, state);
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) p[j][0] = fresh[j][0], p[j][1] = fresh[j][1];
  }
  prepare_values(p, position, state);
  settle(p);
  settle(state.outputs);
  multiply_values<Shape>(p, shared.slots[v.slot], half(), state);
  hopper::products_commit();
  hopper::products_wait<0>();
  settle(state.outputs);
  release(v);
  end_chunk(true, state);
}

// The first item is on its way, as a group of copies of its own.
template <typename Shape>
__device__ void compute(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
#pragma unroll 1
  for (int i = 1; i < kItemsAhead; ++i) fetch_item<Shape>(args, shared, i);
  copies_commit();
  copies_wait<1>();
  compute_sync<Shape>();
  RingPlace<Shape::kSlots> k, v;
  v.next();
  bool cut = false;  // any item is a part of its tile
  const int warp_row = threadIdx.x / 32 % (Shape::kRows / 16) * 16, row = warp_row + threadIdx.x % 32 / 4;
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    if (index > 0) compute_sync<Shape>();  // the q of the item before has been read
    const WorkItem& item = shared.items[index % kItemRing];
    const int kv_head = args.units_of_item.remainder(unit_of(index));
    const RowRanges visible = load_ranges(args, item, row);
    if (index == 0) cuda::wait_for_predecessors();  // q comes from there
    copy_q<Shape>(args, shared, item, kv_head);
    fetch_item<Shape>(args, shared, index + kItemsAhead);
    copies_commit();
    copies_wait<0>();
    share_writes();
    compute_sync<Shape>();
    const bool active = uniform(warp_row < item.count);
    ItemRun<Shape> run = {args, shared, item, kv_head, k, v, item.all_begin, item.all_end, row, active, item.partial};
    run.attend(visible);
    k = run.k, v = run.v;
    if (item.split < 0) continue;
    report_arrival<Shape>(args, item, kv_head);
    cut = true;
  }
  if constexpr (Shape::kRowSets == 1) {
    if (cut) merge_tiles<Shape>(args, shared, units);
  }
  // Blocks without items free their place for the next kernel at once. One of them must have waited, so that this
  // kernel does not end before the one in front of it.
  if (blockIdx.x == 0) cuda::wait_for_predecessors();
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    attention_hopper_kernel(const __grid_constant__ TilesArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t dynamic[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(dynamic);
  // The lists of items and pages are older than the kernel before this one, or that kernel has ended.
  fetch_item<Shape>(args, shared, 0);
  copies_commit();
  int32_t items = args.counts->items;
  const CopyItem first = read_item(args, 0);
  if (threadIdx.x == 0) {
    if (hopper::shared_address(dynamic) % 1024 != 0) __trap();
    for (int i = 0; i < Shape::kSlots; ++i) {
      hopper::barrier_init(&shared.full[i], Shape::kFillers);
      hopper::barrier_init(&shared.empty[i], Shape::kComputeThreads);
    }
    if constexpr (Shape::kCodes) init_codes<Shape>(shared);
    hopper::barrier_init_fence();
  }
  __syncthreads();
  cuda::launch_dependents();
  asm volatile("" : "+r"(items));  // prevents an earlier wait for this load
  const int32_t units = items * args.kv_heads;
  if (threadIdx.x >= Shape::kComputeThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kCopyRegisters));
    if (threadIdx.x == Shape::kComputeThreads + 32) report_start(args, units);  // the warp that does not copy bf16
    if constexpr (Shape::kCodes) {
      produce_from_codes<Shape>(args, shared, units, first);
    } else if (threadIdx.x < Shape::kComputeThreads + 32) {
      produce<Shape>(args, shared, units, first);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kComputeRegisters));
    compute<Shape>(args, shared, units);
  }
#else
  __trap();  // machine code for another GPU: it is never launched
#endif
}

template <typename Shape>
void launch_hopper(Stream& stream, int blocks, bool early, const TilesArgs& args) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(blocks));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = sizeof(typename Shape::Shared);
  how.early = early;
  cuda::launch(attention_hopper_kernel<Shape>, how, stream, args);
}

inline void launch_wide_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  if (head_dim == 64) return launch_hopper<HopperShape<64, false, 2>>(stream, blocks, early, args);
  launch_hopper<HopperShape<128, false, 2>>(stream, blocks, early, args);
}

// kCodes: of HopperShape.
template <bool kCodes>
void launch_hopper(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  with_head_dim(head_dim, [&](auto dim) {
    constexpr int kHeadDim = decltype(dim)::value;
    if constexpr (kHeadDim <= kMaxHopperHeadDim) {
      using Shape = HopperShape<kHeadDim, kCodes>;
      // Codes and their widened values together take the same memory as tiles of bf16.
      static_assert(sizeof(typename Shape::Shared) <= sizeof(typename HopperShape<kHeadDim>::Shared));
      launch_hopper<Shape>(stream, blocks, early, args);
    } else {
      VOLLEY_CHECK_LE(kHeadDim, kMaxHopperHeadDim);
    }
  });
}

}  // namespace volley::ops
