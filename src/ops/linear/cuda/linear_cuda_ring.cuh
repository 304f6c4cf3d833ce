// Shared by the tile kernels of sm_90a: the ring of stages in shared memory, the two threads that fill it with weights
// and x, and the loop that multiplies the stages. The shape defines which operand is the M side of the matrix unit, and
// what the two blocks of a cluster share.
#pragma once

#include "device/cuda/dependent.cuh"
#include "device/cuda/products.cuh"
#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {

struct TileArgs {
  const uint8_t* weights = nullptr;      // packed
  const float* weight_scales = nullptr;  // FP8: scales of packed rows; in blocks [halves][k_blocks]
  const float* row_scales = nullptr;     // FP8: scales of the rows of x; in groups [k_blocks][row_scales_stride]
  const uint8_t* whole = nullptr;        // RowSummaries::whole
  void* y = nullptr;
  int halves = 0;  // halves of panels: 32 weight rows each
  int k_blocks = 0;
  int rows = 0, outputs = 0;  // size of y
  int row_tiles = 0;
  int split = 1;
  EndKind kind = EndKind::kStore;
  bool y_bf16 = false;
  bool summary_weights = false;
  const float* bias = nullptr;  // bias of the outputs, for tiles that add one
  int row_scales_stride = 0;    // a multiple of 4
  SentSums sent = {};           // End::sent
};

// The operand that two blocks of a cluster share, each copying half of it to both: rows of x, or weights.
enum class Common { kNothing, kX, kWeights };

struct Ring {
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // a stage's readers are done
  uint8_t* stages;  // weights, then rows of x
};

// The ring in dynamic shared memory: it starts on 1024.
__device__ inline Ring ring_in(uint8_t* dynamic, uint64_t* full, uint64_t* empty) {
  return {full, empty, dynamic + (1024 - hopper::shared_address(dynamic) % 1024) % 1024};
}

// One thread calls it. How many arrivals fill a stage, and give it back.
template <typename Shape>
__device__ __forceinline__ void init_stages(const Ring& ring, int fillers, int readers) {
  for (int i = 0; i < Shape::kStages; ++i) {
    hopper::barrier_init(&ring.full[i], fillers);
    hopper::barrier_init(&ring.empty[i], readers);
  }
}

struct Slice {  // a range of k, in blocks
  int begin, count;
};

// Calls copy(block, stage) for all blocks of the slice from `first` on, each as soon as its stage is free.
template <typename Shape, typename Copy>
__device__ void refill(const Ring& ring, int first, int count, const Copy& copy) {
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int i = first; i < count; ++i) {
    hopper::barrier_wait(&ring.empty[stage], parity);
    copy(i, stage);
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Weights and x have a thread each: filling the ring keeps the copy engine busy for two microseconds, and x, which is
// wanted first and arrives last, must not queue behind that. `half`: the tile's first; `rank`: the block's in its
// cluster.
template <typename Shape>
__device__ void produce_weights(const Ring& ring, const TileArgs& args, Slice slice, int half, int rank) {
  using namespace hopper;
  const int halves = max(0, min(Shape::kHalves, args.halves - half));
  constexpr bool kToBoth = Shape::kCommon == Common::kWeights;
  const int first = kToBoth ? rank * (Shape::kHalves / 2) : 0;
  const int last = kToBoth ? min(halves, first + Shape::kHalves / 2) : halves;
  // Each weight is read once per tile of rows: with one tile it need not stay in the cache.
  const uint64_t policy = args.row_tiles <= (kToBoth ? 2 : 1) ? l2_evict_first() : l2_evict_normal();
  const auto copy = [&](int block, int stage) {
    barrier_expect(&ring.full[stage], halves * kHalfBytes);
    uint8_t* to = ring.stages + stage * Shape::kStageBytes;
    for (int h = first; h < last;) {
      // The two halves of a panel's block are neighbours in memory.
      const int at = half + h, count = at % 2 == 0 && h + 1 < last ? 2 : 1;
      const int64_t block_at = static_cast<int64_t>(at / 2) * args.k_blocks + slice.begin + block;
      const uint8_t* from = args.weights + block_at * kBlockBytes + at % 2 * kHalfBytes;
      if constexpr (kToBoth) {
        bulk_copy_to_both(to + h * kHalfBytes, from, count * kHalfBytes, &ring.full[stage], policy);
      } else {
        bulk_copy(to + h * kHalfBytes, from, count * kHalfBytes, &ring.full[stage], policy);
      }
      h += count;
    }
  };
  const int ahead = min(Shape::kStages, slice.count);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) copy(i, i);
  refill<Shape>(ring, ahead, slice.count, copy);
}

template <typename Shape>
__device__ void produce_x(const Ring& ring, const CUtensorMap* x_map, Slice slice, int row, int rank) {
  using namespace hopper;
  prefetch_tensor_map(x_map);
  const uint64_t policy = l2_evict_last();
  const auto copy = [&](int block, int stage) {
    const int column = (slice.begin + block) * Shape::kBlockColumns;
    uint8_t* to = ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes;
    barrier_expect(&ring.full[stage], Shape::kRows * 128);
    if constexpr (Shape::kCommon == Common::kX) {
      const int part = rank * (Shape::kRows / 2);
      tensor_copy_to_both(to + part * 128, x_map, column, row + part, &ring.full[stage], policy);
    } else {
      tensor_copy(to, x_map, column, row, &ring.full[stage], policy);
    }
  };
  cuda::wait_for_predecessors();
  const int ahead = min(Shape::kStages, slice.count);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) copy(i, i);
  refill<Shape>(ring, ahead, slice.count, copy);
}

// Keeps the compiler from computing a value anew where it is used.
__device__ inline uint32_t held_in_register(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A warpgroup's place in the ring: the stage that it multiplies next, and the one that it has not given back.
struct RingReader {
  int stage = 0, held = -1;
  uint32_t parity = 0;
  int wanted = 0;  // Shape::kCountsGivenBack: how many stages will be filled again once they are given back
};

// Adds the products of the next `count` blocks of k.
//
// A stage is given back when the products of the next one are under way and its own are done; but when the next has not
// arrived, as soon as its own are done: the copies are what everything waits for then. What is computed between a
// stage's arrival and its products is time in which the copies wait too: with addresses computed there, a shape with
// few rows lost 5 %.
template <typename Shape>
__device__ __forceinline__ void consume(const Ring& ring, RingReader& reader, int count,
                                        float (&sums)[Shape::kColumns / 2]) {
  using namespace hopper;
  constexpr Operand kOperand = Shape::kFp8 ? Operand::kE4M3 : Operand::kBF16;
  const bool signals = threadIdx.x % 128 == 0;
  const uint32_t group = threadIdx.x / 128 * static_cast<uint32_t>(kBlockBytes);  // 64 rows of the M side
  const uint32_t m_side = shared_address(ring.stages) + Shape::kMSideAt + group;
  const uint32_t a = held_in_register(descriptor_low(m_side));
  const uint32_t b = held_in_register(descriptor_low(shared_address(ring.stages + Shape::kNSideAt)));
  const uint32_t full = held_in_register(shared_address(ring.full));
  const uint32_t empty = held_in_register(shared_address(ring.empty));
  const auto give_back = [&] {
    bool gives = signals && reader.held >= 0;
    if constexpr (Shape::kCountsGivenBack) gives = gives && reader.wanted-- > 0;
    if (gives) {
      if constexpr (Shape::kCommon != Common::kNothing) {
        for (uint32_t block : {0u, 1u}) barrier_arrive_at(empty + reader.held * 8, block);
      } else {
        barrier_arrive(empty + reader.held * 8);
      }
    }
    reader.held = -1;
  };
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint32_t offset = reader.stage * (Shape::kStageBytes / 16);
    if (!__all_sync(0xffffffff, barrier_ready(full + reader.stage * 8, reader.parity))) {
      products_wait<0>();
      give_back();
    }
    barrier_wait(full + reader.stage * 8, reader.parity);
    if constexpr (requires { Shape::kThreadsCopy; }) shared_writes_to_units();  // rows of x that threads copied
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<Shape::kColumns, Shape::kProductLimit, kOperand>(sums, matrix_descriptor(a + offset + k * 2),
                                                                matrix_descriptor(b + offset + k * 2));
    }
    products_commit();
    products_wait<1>();
    give_back();
    reader.held = reader.stage;
    if (++reader.stage == Shape::kStages) {
      reader.stage = 0;
      reader.parity ^= 1;
    }
  }
  products_wait<0>();
}

}  // namespace volley::ops
