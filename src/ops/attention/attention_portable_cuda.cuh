// Attention over swizzled pages for every GPU from sm_80 on: warps' matrix products on K and V that asynchronous
// copies bring into shared memory. GPUs with wgmma have attention_hopper_cuda.cuh; the values are the same, bit for
// bit.
//
// A block takes items (attention_cuda_work.cuh) one after the other and never stops copying: K of the tile after next
// and V of the next are on their way while it computes, across items. Four warps hold 16 query rows each; a warp
// without rows only copies. With head_dim 256 a second set of four computes the same scores for the other half of the
// outputs, because a lane has registers for 128 of them twice: one set for the chunk under way, one for the merged
// chunks before it. If the cache holds e4m3 codes, they are copied into the memory of one of the two tiles of K (and of
// V), and widened into that of the other when needed.
//
// With head_dim 512 shared memory has room for three tiles, one each of q, K and V: V of a tile is copied while its
// scores are computed, and K of the next one while V is added. A lane's merged outputs then lie in local memory, which
// it reads and writes where chunks end. Codes of K and of V share the tile that they are widened into.
#pragma once

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_codes_cuda.cuh"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {

template <int kHeadDim_, bool kCodes_ = false>
struct PortableShape {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kCodes = kCodes_;                 // in the cache
  static constexpr int kHalves = kHeadDim > 128 ? 2 : 1;  // parts of the outputs, a set of four warps each
  static constexpr int kThreads = 128 * kHalves;
  static constexpr int kBlocks = attention_blocks_per_multiprocessor(kHeadDim);
  static constexpr int kGroupBytes = 8 * kHeadDim * 2;  // 8 positions of K or V, or query rows
  static constexpr int kTileBytes = kTilePositions * kHeadDim * 2;
  static constexpr int kSlots = kHeadDim > 256 ? 1 : 2;  // tiles each of q, K and V
  static constexpr int kSharedBytes = 3 * kSlots * kTileBytes + 1024;
  static constexpr bool kWidensAside = kCodes && kSlots == 1;
  static constexpr int kPieces = kTileBytes / 16 / kThreads;  // pieces of 16 bytes for each thread
  // As the cache holds them.
  static constexpr int kCopyBytes = kCodes ? kTileBytes / 2 : kTileBytes;
  static constexpr int kCopyGroupBytes = kCodes ? kGroupBytes / 2 : kGroupBytes;
  static constexpr int kCopyPieces = kCopyBytes / 16 / kThreads;
  static constexpr int kScoreSteps = kHeadDim / 16;        // steps of 16 elements
  static constexpr int kOutputs = kHeadDim / kHalves / 8;  // matrices of 8 outputs, a warp
};

constexpr int kItemRing = 8;    // items that a block keeps at hand
constexpr int kItemsAhead = 4;  // how far ahead it fetches them

// A tile of K and V on its way.
struct TileLoad {
  int32_t position, begin, end;  // the tile's position, and its visible range
  int64_t offset;                // lane i: of K of positions position + 8 (i % 8) …, in bytes from args.kv
};

// The order of this block's items, and where their parts lie.
struct ItemCursor {
  int32_t index = 0;  // index among this block's items
  int32_t position = 0;
  bool valid = false;
};

__device__ inline int32_t unit_of(int32_t index) {  // back and forth, so that no block gets the larger of every wave
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  return index * blocks + (index % 2 == 0 ? block : blocks - 1 - block);
}

template <typename Shape>
struct TilesBlock {
  const TilesArgs& args;
  uint32_t q, k, v;  // shared memory
  WorkItem* ring;
  int32_t units;

  __device__ const WorkItem& item(int32_t index) const { return ring[index % kItemRing]; }
  __device__ int head(int32_t index) const { return unit_of(index) % args.kv_heads; }

  __device__ void fetch_item(int32_t index) const {
    const int32_t unit = unit_of(index);
    if (unit >= units || threadIdx.x >= sizeof(WorkItem) / 16) return;
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&ring[index % kItemRing]));
    copy_or_zero(to + threadIdx.x * 16,
                 reinterpret_cast<const uint8_t*>(&args.items[unit / args.kv_heads]) + threadIdx.x * 16, true);
  }

  __device__ void begin_item(ItemCursor& cursor) const {
    cursor.valid = unit_of(cursor.index) < units;
    if (cursor.valid) cursor.position = item(cursor.index).begin / kTilePositions * kTilePositions;
  }
  __device__ void advance(ItemCursor& cursor) const {
    cursor.position += kTilePositions;
    if (cursor.position < item(cursor.index).end) return;
    ++cursor.index;
    begin_item(cursor);
  }

  __device__ TileLoad find_tile(const ItemCursor& cursor) const {
    TileLoad load = {0, 0, 0, 0};
    if (!cursor.valid) return load;
    const WorkItem& it = item(cursor.index);
    load.position = cursor.position;
    load.begin = it.begin;
    load.end = it.end;
    const int32_t position = cursor.position + threadIdx.x % 8 * 8;
    if (position + 8 <= it.begin || position >= it.end) return load;  // not read, and perhaps without a page
    const int32_t index = args.page_size.divide(position), in_page = args.page_size.remainder(position);
    const int32_t page = args.pages[it.slot][index];
    if (page < 0) __trap();
    load.offset =
        page * args.page_stride + head(cursor.index) * 2 * args.head_bytes + in_page / 8 * Shape::kCopyGroupBytes;
    return load;
  }

  __device__ void copy_tile(uint32_t to, const TileLoad& load, int64_t extra) const {
#pragma unroll
    for (int i = 0; i < Shape::kCopyPieces; ++i) {
      constexpr int kRowPieces = Shape::kCodes ? 4 : 8;  // pieces of a position in a block of 64 elements
      const int piece = i * Shape::kThreads + threadIdx.x;
      const int group = piece / (Shape::kCopyGroupBytes / 16), in_group = piece % (Shape::kCopyGroupBytes / 16);
      const int64_t offset = __shfl_sync(0xffffffff, load.offset, group) + extra;
      const int32_t position = load.position + group * 8 + in_group / kRowPieces % 8;
      copy_or_zero(to + piece * 16, args.kv + offset + in_group * 16, position >= load.begin && position < load.end);
    }
  }

  // Where K (k) or V (v) of a slot is copied to, and where the tile to multiply lies. With one slot codes of both lie
  // in the tile of K, and are widened into that of V.
  __device__ uint32_t copied(uint32_t k_or_v, uint32_t slot) const {
    if constexpr (Shape::kWidensAside) return k_or_v == k ? k : k + Shape::kCopyBytes;
    return k_or_v + slot * Shape::kCopyBytes;
  }
  __device__ uint32_t tile(uint32_t k_or_v, uint32_t slot) const {
    if constexpr (Shape::kWidensAside) return v;
    return Shape::kCodes ? k_or_v + Shape::kTileBytes : copied(k_or_v, slot);
  }
  // Where an item's query rows lie.
  __device__ uint32_t q_tile(int32_t index) const {
    return q + index % Shape::kSlots * Shape::kTileBytes;
  }

  // Codes: all threads widen a slot's copy into its tile.
  __device__ void widen_tile(uint32_t k_or_v, uint32_t slot) const {
    const uint32_t from = copied(k_or_v, slot), to = tile(k_or_v, slot);
#pragma unroll
    for (int i = 0; i < Shape::kPieces; ++i) {
      const int piece = i * Shape::kThreads + threadIdx.x;
      uint2 codes;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(codes.x), "=r"(codes.y)
                   : "r"(from + piece * 8)
                   : "memory");
      const uint4 wide = widen_piece(codes);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + piece * 16), "r"(wide.x), "r"(wide.y),
                   "r"(wide.z), "r"(wide.w)
                   : "memory");
    }
    __syncthreads();
  }

  __device__ void copy_q(const ItemCursor& cursor) const {
    const WorkItem& it = item(cursor.index);
    const uint32_t to = q_tile(cursor.index);
    const int first_head = head(cursor.index) * args.group.by;
#pragma unroll
    for (int i = 0; i < Shape::kPieces; ++i) {
      const int piece = i * Shape::kThreads + threadIdx.x;
      const int row = piece / (Shape::kHeadDim / 8), column = piece % (Shape::kHeadDim / 8);
      const bool exists = row < it.count;
      const int query = it.first + (exists ? row : 0);
      const __nv_bfloat16* from = args.q + (static_cast<int64_t>(it.row + args.group.divide(query)) * args.heads +
                                            first_head + args.group.remainder(query)) *
                                               Shape::kHeadDim;
      copy_or_zero(to + static_cast<uint32_t>(kv_swizzled_bytes(Shape::kHeadDim, row, column)), from + column * 8,
                   exists);
    }
  }
};

template <typename Shape>
__device__ void multiply_scores(float (&s)[kScoreTiles][4], uint32_t q, uint32_t k, int warp_row) {
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
#pragma unroll
  for (auto& x : s) x[0] = x[1] = x[2] = x[3] = 0.0f;
  const uint32_t q_row = q + (warp_row / 8 + matrix % 2) * Shape::kGroupBytes + row * 128;
  const uint32_t k_row = k + matrix / 2 * Shape::kGroupBytes + row * 128;
#pragma unroll
  for (int step = 0; step < Shape::kScoreSteps; ++step) {
    uint32_t a[4];
    const int q_piece = step * 2 + matrix / 2, k_piece = step * 2 + matrix % 2;
    load_fragments(a, q_row + q_piece / 8 * 1024 + ((q_piece % 8) ^ row) * 16);
    const uint32_t k_at = k_row + k_piece / 8 * 1024 + ((k_piece % 8) ^ row) * 16;
#pragma unroll
    for (int j = 0; j < kScoreTiles; j += 2) {
      uint32_t b[4];
      load_fragments(b, k_at + j * Shape::kGroupBytes);
      multiply16(s[j], a, b[0], b[1]);
      multiply16(s[j + 1], a, b[2], b[3]);
    }
  }
}

template <typename Shape>
__device__ void multiply_values(const uint32_t (&p)[kScoreTiles][2], uint32_t v, int half, RowState<Shape>& state) {
  const uint32_t row = v_row<Shape>(v, half);
#pragma unroll
  for (int step = 0; step < kTilePositions / 16; ++step) {
    const uint32_t a[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, v_address<Shape>(row, step, j));
      multiply16(state.outputs[j], a, b[0], b[1]);
      multiply16(state.outputs[j + 1], a, b[2], b[3]);
    }
  }
}

// Whether this thread's part of a tile of V has an infinity or NaN.
template <typename Shape>
__device__ bool holds_non_finite(uint32_t v) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < Shape::kPieces; ++i) {
    uint32_t x[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(v + (i * Shape::kThreads + threadIdx.x) * 16));
#pragma unroll
    for (uint32_t pair : x) found |= (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
  }
  return found;
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    attention_portable_kernel(const __grid_constant__ TilesArgs args) {
  extern __shared__ uint8_t dynamic[];
  __shared__ WorkItem ring[kItemRing];
  const auto base = (static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)) + 1023) / 1024 * 1024;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  constexpr uint32_t kRoom = Shape::kSlots * Shape::kTileBytes, kOther = Shape::kSlots - 1;
  constexpr int kUnderWay = Shape::kSlots == 2 ? 2 : 0;  // copies that need not have ended where a product begins
  const TilesBlock<Shape> block = {
      args, base, base + kRoom, base + 2 * kRoom, ring, args.counts->items * args.kv_heads};
  for (int i = 0; i < kItemsAhead; ++i) block.fetch_item(i);
  copies_commit();
  copies_wait<0>();
  __syncthreads();

  ItemCursor ahead, at;  // the next tile whose K is copied; the tile that is computed
  block.begin_item(at);
  ahead = at;
  bool new_item = true;
  TileLoad next = block.find_tile(ahead), pending = next;  // K of `next` is to be copied, V of `pending`
  const auto copy_k = [&](uint32_t slot) {
    if (ahead.valid) {
      block.copy_tile(block.copied(block.k, slot), next, 0);
      if (new_item) {
        block.copy_q(ahead);
        block.fetch_item(ahead.index + kItemsAhead);
      }
      const int32_t index = ahead.index;
      block.advance(ahead);
      new_item = ahead.index != index;
    }
    copies_commit();
    pending = next;
    next = block.find_tile(ahead);
  };
  const auto copy_v = [&](uint32_t slot) {
    if (pending.end > 0) block.copy_tile(block.copied(block.v, slot), pending, args.head_bytes);
    copies_commit();
  };
  copy_k(0);
  if constexpr (Shape::kSlots == 2) {
    copy_v(0);
    copy_k(1);
  }

  const int warp = threadIdx.x / 32, half = warp / 4;
  const int warp_row = warp % 4 * 16, row = warp_row + threadIdx.x % 32 / 4;
  RowState<Shape> state;
  float4 merged[Shape::kOutputs];
  bool first_tile = true;
  int32_t chunk_stop = 0, partial = 0;
  for (uint32_t slot = 0; at.valid; slot ^= kOther) {
    const WorkItem& item = block.item(at.index);
    const bool active = warp_row < item.count;
    const int32_t position = at.position;
    if (first_tile) {
      state.visible = load_ranges(args, item, row);
      state.clear_merged();
#pragma unroll
      for (float4& m : merged) m = {0.0f, 0.0f, 0.0f, 0.0f};
      partial = item.partial;
    }
    if (first_tile || position >= chunk_stop) {
      state.clear_chunk();
      chunk_stop = chunk_end(position, item.shift);
    }
    const bool edge = position < item.all_begin || position + kTilePositions > item.all_end;
    const uint32_t v = block.tile(block.v, slot);

    copies_wait<kUnderWay>();
    __syncthreads();  // K is there, and the V before this one has been read
    copy_v(slot ^ kOther);
    if constexpr (Shape::kCodes) block.widen_tile(block.k, slot);
    uint32_t p[kScoreTiles][2];
    if (active) {
      float s[kScoreTiles][4];
      multiply_scores<Shape>(s, block.q_tile(at.index), block.tile(block.k, slot), warp_row);
      if (edge) hide_scores(s, state, position);
      float factor[2];
      update_probabilities(s, args.scale_log2, state, p, factor);
      scale_outputs(factor, state);
    }
    copies_wait<kUnderWay>();
    __syncthreads();  // V is there, and K has been read
    copy_k(slot);
    if constexpr (Shape::kCodes) block.widen_tile(block.v, slot);
    const bool spoiled = edge && __syncthreads_or(holds_non_finite<Shape>(v));
    if (active) {
      if (spoiled) {
        multiply_seen_values<Shape>(Probabilities{p}, v, half, position, state);
      } else {
        multiply_values<Shape>(p, v, half, state);
      }
    }

    const bool last = position + kTilePositions >= item.end;
    if (last || position + kTilePositions >= chunk_stop) {
      const int kv_head = block.head(at.index);
      state.close_chunk();
      if (item.folded) {
        state.merge_chunk([&](int j) { return merged[j]; });
#pragma unroll
        for (int j = 0; j < Shape::kOutputs; ++j) merged[j] = state.output(j);
      } else {
        state.begin_merging();
      }
      if (active && item.partial < 0 && last) {
        store_result<Shape>(args, item, kv_head, row, half, state);
      } else if (active && (last || !item.folded)) {
        store_partial<Shape>(args, item, kv_head, partial++, state);
      }
    }
    first_tile = last;
    block.advance(at);
  }
}

template <typename Shape>
void launch_portable(Stream& stream, int blocks, bool early, const TilesArgs& args) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(blocks));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = early;
  cuda::launch(attention_portable_kernel<Shape>, how, stream, args);
}

// kCodes: of PortableShape.
template <bool kCodes>
void launch_portable(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  with_head_dim(head_dim, [&](auto dim) {
    launch_portable<PortableShape<decltype(dim)::value, kCodes>>(stream, blocks, early, args);
  });
}

}  // namespace volley::ops
