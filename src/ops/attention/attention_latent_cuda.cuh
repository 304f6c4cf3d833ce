// Attention over latents on sm_90a: V is the first columns of K, so a tile is copied once, for scores and for values.
// Items, copies, partial results and their merging are attention_hopper_cuda.cuh's.
//
// All heads of all rows of a segment share K: they are the query rows of its tiles. The outputs of 64 query rows take
// half of the registers, so two warpgroups hold half of the columns each. A third makes scores and probabilities, which
// it hands over in shared memory, with the factors of the outputs: so the matrix unit makes the scores of one tile
// while it adds the values of the tile before. There is room for two tiles, which are copied while the other one is
// multiplied. There is no room for merged outputs: they wait in memory (TilesArgs::folds), mostly in the L2 cache.
#pragma once

#include "ops/attention/attention_hopper_cuda.cuh"

namespace volley::ops {

template <int kLatent>
struct LatentTiles {
  static constexpr int kHeadDim = kLatent, kKeyDim = kLatent + 64, kOperands = 1;
  static constexpr bool kCodes = false;
  static constexpr int kHalves = 2, kRows = kTileRows;
  // Two warpgroups for outputs, then one for scores, then that of the copying warp.
  static constexpr int kComputeThreads = 128 * kHalves, kCopyThread = kComputeThreads + 128,
                       kThreads = kCopyThread + 128;
  // A block starts with 128 a thread.
  static constexpr int kOutputRegisters = 184, kScoreRegisters = 104, kCopyRegisters = 40;
  static constexpr int kBlocks = 1;
  static constexpr int kGroupBytes = 8 * kKeyDim * 2;  // 8 positions, or query rows
  static constexpr int kTileBytes = kTilePositions * kKeyDim * 2;
  static constexpr int kSlots = kLatent > 256 ? 2 : 4;
  static constexpr int kFillers = 1;
  static constexpr int kOutputs = kHeadDim / kHalves / 8;

  struct Shared {
    union {
      alignas(1024) uint8_t q[kTileBytes];
      uint8_t merged[sizeof(MergeSteps)];  // when all items are done
    };
    uint8_t slots[kSlots][kTileBytes];
    // One tile's rows of 64 probabilities, swizzled as q; the factor of each row's outputs so far; and where a chunk
    // ends, its maximum and sum.
    uint8_t probabilities[kTileRows * 128];
    float factors[kTileRows];
    float2 closed[kTileRows];
    WorkItem items[kItemRing];
    uint64_t full[kSlots], empty[kSlots];
    uint64_t made, used;  // probabilities: written; read
    uint32_t shares[2];
  };
  static_assert(sizeof(Shared) <= 227 << 10);
};

// An item as the warpgroups that compute see it. k: the slot of the next tile.
template <typename Shape>
struct LatentRun {
  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  RingPlace<Shape::kSlots>& k;
  uint32_t& turn;  // parity of `made`, and of `used`
  int row;         // this lane's first row of the tile
  bool active;     // the warp has rows
  int partial;
  int kv_head = 0;
  bool first_chunk = true;

  __device__ int half() const { return threadIdx.x / 128; }
  __device__ bool edge(int32_t position) const {
    return uniform(position < item.all_begin || position + kTilePositions > item.all_end);
  }
  __device__ float4& merged(int j) const {
    return args.folds[(static_cast<int64_t>(blockIdx.x) * Shape::kOutputs + j) * Shape::kComputeThreads + threadIdx.x];
  }
  __device__ __forceinline__ void make_scores(const RowRanges& visible);
  __device__ __forceinline__ void add_values(const RowRanges& visible);
  __device__ __forceinline__ void add_tile(int32_t position, RowState<Shape>& state);
};

// Only the members of a RowState that scores need.
struct ScoreState {
  float maximum[2], sum[2];
  RowRanges visible;
};

// By the warpgroup that makes scores: the probabilities of all tiles of the item.
template <typename Shape>
__device__ __forceinline__ void LatentRun<Shape>::make_scores(const RowRanges& visible) {
  ScoreState state;
  state.visible = visible;
  const int lane = threadIdx.x % 32;
  const int32_t end = uniform(item.end), shift = uniform(item.shift);
  int32_t position = uniform(item.begin) / kTilePositions * kTilePositions, chunk_stop = position;
  const uint64_t a = swizzled_operand(hopper::shared_address(shared.q), Shape::kGroupBytes, 0);
#pragma unroll 1
  for (; position < end; position += kTilePositions) {
    if (position >= chunk_stop) {
      state.maximum[0] = state.maximum[1] = -INFINITY;
      state.sum[0] = state.sum[1] = 0.0f;
      chunk_stop = chunk_end(position, shift);
    }
    float s[kScoreTiles][4];
    hopper::barrier_wait(&shared.full[k.slot], k.parity);
    const uint64_t b = swizzled_operand(hopper::shared_address(shared.slots[k.slot]), Shape::kGroupBytes, 0);
    hopper::products_begin();
#pragma unroll
    for (int step = 0; step < Shape::kKeyDim / 16; ++step) {
      const uint32_t at = (step / 4 * 1024 + step % 4 * 32) >> 4;
      multiply_rows(s, a + at, b + at, step > 0);
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    settle(s);
    k.next();
    uint32_t p[kScoreTiles][2];
    float factor[2];
    if (active) {
      if (edge(position)) hide_scores(s, state, position);
      update_probabilities(s, args.scale_log2, state, p, factor);
    }
    hopper::barrier_wait(&shared.used, turn ^ 1);  // returns at once at first
    turn ^= 1;
    if (active) {
      const bool closes = position + kTilePositions >= min(chunk_stop, end);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = row + 8 * i;
        uint8_t* const to = shared.probabilities + r * 128 + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < kScoreTiles; ++j) *reinterpret_cast<uint32_t*>(to + (j ^ (r % 8)) * 16) = p[j][i];
        float sum = state.sum[i];
        if (closes) {
          sum += __shfl_xor_sync(0xffffffff, sum, 1);
          sum += __shfl_xor_sync(0xffffffff, sum, 2);
        }
        if (lane % 4 != 0) continue;
        shared.factors[r] = factor[i];
        if (closes) shared.closed[r] = {state.maximum[i], sum};
      }
    }
    share_writes();
    hopper::barrier_arrive(&shared.made);
  }
}

// Adds the product of a tile's probabilities and values.
template <typename Shape>
__device__ __forceinline__ void LatentRun<Shape>::add_tile(int32_t position, RowState<Shape>& state) {
  hopper::barrier_wait(&shared.made, turn);
  turn ^= 1;
  hopper::barrier_wait(&shared.full[k.slot], k.parity);  // long since; makes the copies visible to this warpgroup
  uint8_t* const values = shared.slots[k.slot];
  if (active) {
    const float factor[2] = {shared.factors[row], shared.factors[row + 8]};
    scale_outputs(factor, state);
  }
  if (edge(position) && uniform(compute_sync_or<Shape>(clean_values<Shape>(values, position, item)))) {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const uint32_t from =
        hopper::shared_address(shared.probabilities) + (threadIdx.x / 32 % 4 * 16 + matrix % 2 * 8 + lane % 8) * 128;
    const auto left = [&](int step, uint32_t(&a)[4]) {
      load_fragments(a, from + ((step * 2 + matrix / 2) ^ (lane % 8)) * 16);
    };
    multiply_seen_values<Shape>(left, hopper::shared_address(values), half(), position, state);
    clear_values<Shape>(values);
  }
  const uint64_t a = swizzled_operand(hopper::shared_address(shared.probabilities), 1024, 0);
  const uint64_t b =
      swizzled_operand(hopper::shared_address(values) + half() * Shape::kOutputs * 128, Shape::kGroupBytes, 1024);
  settle(state.outputs);
  hopper::products_begin();
#pragma unroll
  for (int step = 0; step < kTilePositions / 16; ++step) {
    constexpr int kColumns = 128;  // a kernel that starts with 128 registers cannot have more sums in an instruction
#pragma unroll
    for (int column = 0; column < 8 * Shape::kOutputs; column += kColumns) {
      hopper::Product<kColumns>::template run<hopper::Operand::kBF16Columns, true>(
          state.outputs[column / 8], a + step * 2, b + ((step * 2 * Shape::kGroupBytes + column * 16) >> 4));
    }
  }
  hopper::products_commit();
  hopper::products_wait<0>();
  settle(state.outputs);
}

// By the warpgroups of outputs.
template <typename Shape>
__device__ __forceinline__ void LatentRun<Shape>::add_values(const RowRanges& visible) {
  RowState<Shape> state;
  state.visible = visible;
  state.clear_merged();
  const int32_t end = uniform(item.end), shift = uniform(item.shift);
  int32_t position = uniform(item.begin) / kTilePositions * kTilePositions, chunk_stop = position;
#pragma unroll 1
  for (; position < end; position += kTilePositions) {
    if (position >= chunk_stop) {
      state.clear_chunk();
      chunk_stop = chunk_end(position, shift);
    }
    add_tile(position, state);
    const bool closes = position + kTilePositions >= min(chunk_stop, end);
    if (closes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 closed = shared.closed[row + 8 * i];
        state.maximum[i] = closed.x, state.sum[i] = closed.y;
      }
    }
    hopper::barrier_arrive(&shared.empty[k.slot]);
    hopper::barrier_arrive(&shared.used);
    k.next();
    if (closes) fold_chunk(*this, position + kTilePositions >= end, state);
  }
}

// A barrier among the three warpgroups that compute.
template <typename Shape>
__device__ void latent_sync() {
  asm volatile("bar.sync 2, %0;" ::"n"(Shape::kCopyThread) : "memory");
}

// kScores: the warpgroup that makes scores. Code of its own for each, because they have different numbers of registers.
template <typename Shape, bool kScores>
__device__ __forceinline__ void compute_latents(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
#pragma unroll 1
  for (int i = 1; i < kItemsAhead; ++i) fetch_item<Shape>(args, shared, i);
  copies_commit();
  copies_wait<1>();
  latent_sync<Shape>();
  RingPlace<Shape::kSlots> k;
  uint32_t turn = 0;
  bool cut = false;  // any item is a part of its tile
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll 1
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    if (index > 0) latent_sync<Shape>();  // the q of the item before has been read
    const WorkItem& item = shared.items[index % kItemRing];
    const RowRanges visible = load_ranges(args, item, row);
    if (index == 0) cuda::wait_for_predecessors();  // q comes from there
    if constexpr (!kScores) {
      copy_q<Shape>(args, shared, item, 0);
      fetch_item<Shape>(args, shared, index + kItemsAhead);
      copies_commit();
      copies_wait<0>();
      share_writes();
    }
    latent_sync<Shape>();
    const bool active = uniform(threadIdx.x / 32 % 4 * 16 < item.count);
    LatentRun<Shape> run = {args, shared, item, k, turn, row, active, item.partial};
    if constexpr (kScores) {
      run.make_scores(visible);
    } else {
      run.add_values(visible);
      if (item.split < 0) continue;
      report_arrival<Shape>(args, item, 0);
      cut = true;
    }
  }
  if constexpr (!kScores) {
    if (cut) merge_tiles<Shape>(args, shared, units);
  }
  if (blockIdx.x == 0) cuda::wait_for_predecessors();
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    attention_latent_kernel(const __grid_constant__ TilesArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t dynamic[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(dynamic);
  fetch_item<Shape>(args, shared, 0);
  copies_commit();
  int32_t units = args.counts->items;
  const CopyItem first = read_item(args, 0);
  if (threadIdx.x == 0) {
    if (hopper::shared_address(dynamic) % 1024 != 0) __trap();
    for (int i = 0; i < Shape::kSlots; ++i) {
      hopper::barrier_init(&shared.full[i], Shape::kFillers);
      hopper::barrier_init(&shared.empty[i], Shape::kComputeThreads);
    }
    hopper::barrier_init(&shared.made, 128);
    hopper::barrier_init(&shared.used, Shape::kComputeThreads);
    hopper::barrier_init_fence();
  }
  __syncthreads();
  cuda::launch_dependents();
  asm volatile("" : "+r"(units));  // prevents an earlier wait for this load
  if (threadIdx.x >= Shape::kCopyThread) {
    hopper::registers_shrink_to<Shape::kCopyRegisters>();
    if (threadIdx.x == Shape::kCopyThread + 32) report_start(args, units);
    if (threadIdx.x < Shape::kCopyThread + 32) produce<Shape>(args, shared, units, first);
  } else if (threadIdx.x >= Shape::kComputeThreads) {
    hopper::registers_shrink_to<Shape::kScoreRegisters>();
    compute_latents<Shape, true>(args, shared, units);
  } else {
    hopper::registers_grow_to<Shape::kOutputRegisters>();
    compute_latents<Shape, false>(args, shared, units);
  }
#else
  __trap();  // machine code for another GPU: it is never launched
#endif
}

template <typename Shape>
void launch_latents(Stream& stream, int blocks, bool early, const TilesArgs& args) {
  cuda::launch(attention_latent_kernel<Shape>,
               {.grid = cuda::dims(blocks),
                .block = dim3(Shape::kThreads),
                .shared_bytes = sizeof(typename Shape::Shared),
                .early = early},
               stream, args);
}

inline void launch_latents(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  if (head_dim == LatentTiles<512>::kKeyDim) return launch_latents<LatentTiles<512>>(stream, blocks, early, args);
  VOLLEY_CHECK_EQ(head_dim, LatentTiles<256>::kKeyDim);
  launch_latents<LatentTiles<256>>(stream, blocks, early, args);
}

}  // namespace volley::ops
