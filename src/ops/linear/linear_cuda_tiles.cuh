// Few rows against many weights on sm_90a: y = x W^T where reading W is the cost.
//
// The weights are the M side of the matrix unit (64 outputs at a time), the rows of x its N side, so that 8 rows cost
// no more tensor work than they must. Two threads copy: blocks of weights and boxes of x go through a ring of stages in
// shared memory; the other warps multiply. The weights, which depend on no other kernel, start while the predecessor
// still runs.
//
// Where a weight has too few tiles for the multiprocessors, two neighbours share a tile, one half of k each, as a
// cluster. Each leaves its sums in its shared memory; after a barrier each finishes every other row, first half plus
// second. What a kernel does between its last weight and its end is time in which nothing is read, and a trip through
// the L2 cache costs a microsecond there; hence shared memory, and hence two (larger clusters do not fill the chip: 30
// of four fit on an H200 at a time). docs/cuda-notes.md has the measurements.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/dependent.cuh"
#include "device/cuda/products.cuh"
#include "ops/linear/linear_cuda.h"

namespace volley::ops {

struct TileArgs {
  const uint8_t* weights = nullptr;  // packed
  void* y = nullptr;
  int halves = 0;  // of panels: 32 weight rows each
  int k_blocks = 0;
  int rows = 0, outputs = 0;  // of y
  int row_tiles = 0;
  int split = 1;
  Epilogue epilogue = Epilogue::kStore;
  bool y_bf16 = false;
};

// kHalves * 32 weight rows for kRows rows of x, by kGroups warpgroups and two producer warps.
template <int kHalves_, int kRows_>
struct TileShape {
  static constexpr int kHalves = kHalves_, kRows = kRows_;
  static constexpr int kGroups = (kHalves + 1) / 2;  // a warpgroup for 64 weight rows; the last may have 32 to spare
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 64;  // and a warp each for weights and x

  static constexpr int kWeightBytes = kHalves * kHalfBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  static constexpr int kStages = (220 << 10) / kStageBytes;
  // The ring starts on 1024; a group with rows to spare reads past its weights, at the end past the ring.
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024 + kHalfBytes;

  // Sums wait there as [row][output]; 4 floats of padding spread a column's writes over the banks.
  static constexpr int kSumStride = kHalves * 32 + 4;
  static_assert(kRows * kSumStride * 4 <= kStages * kStageBytes, "the sums take the place of the ring");
  static_assert(kStageBytes % 1024 == 0 && kStages >= 3);
};

struct Ring {
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // a stage's readers are done
  uint8_t* stages;
};

struct Slice {  // of k, in blocks
  int begin, count;
};

// Calls copy(block, stage) for all blocks of the slice from `first` on, each as soon as its stage is free.
template <typename Shape, typename Copy>
__device__ void refill(const Ring& ring, int first, int count, const Copy& copy) {
  int stage = 0;
  uint32_t parity = 0;
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
// wanted first and arrives last, must not queue behind that.
template <typename Shape>
__device__ void produce_weights(const Ring& ring, const TileArgs& args, Slice slice, int half) {
  using namespace hopper;
  const int halves = min(Shape::kHalves, args.halves - half);
  // Each weight is read once per tile of rows: with one tile it need not stay in the cache.
  const uint64_t policy = args.row_tiles == 1 ? l2_evict_first() : l2_evict_normal();
  const auto copy = [&](int block, int stage) {
    barrier_expect(&ring.full[stage], halves * kHalfBytes);
    uint8_t* to = ring.stages + stage * Shape::kStageBytes;
    for (int h = 0; h < halves;) {
      // The two halves of a panel's block are neighbours in memory.
      const int at = half + h, count = at % 2 == 0 && h + 1 < halves ? 2 : 1;
      const int64_t from = static_cast<int64_t>(at / 2) * args.k_blocks + slice.begin + block;
      bulk_copy(to + h * kHalfBytes, args.weights + from * kBlockBytes + at % 2 * kHalfBytes, count * kHalfBytes,
                &ring.full[stage], policy);
      h += count;
    }
  };
  const int ahead = min(Shape::kStages, slice.count);
  for (int i = 0; i < ahead; ++i) copy(i, i);
  refill<Shape>(ring, ahead, slice.count, copy);
}

template <typename Shape>
__device__ void produce_x(const Ring& ring, const CUtensorMap* x_map, Slice slice, int row) {
  using namespace hopper;
  prefetch_tensor_map(x_map);
  const uint64_t policy = l2_evict_last();
  const auto copy = [&](int block, int stage) {
    barrier_expect(&ring.full[stage], Shape::kRows * 128);
    tensor_copy(ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes, x_map,
                (slice.begin + block) * static_cast<int>(kBlockK), row, &ring.full[stage], policy);
  };
  cuda::wait_for_predecessors();
  const int ahead = min(Shape::kStages, slice.count);
  for (int i = 0; i < ahead; ++i) copy(i, i);
  refill<Shape>(ring, ahead, slice.count, copy);
}

template <typename Shape>
__device__ void consume(const Ring& ring, int count, float (&sums)[Shape::kRows / 2]) {
  using namespace hopper;
  const int group = threadIdx.x / 128;
  const bool signals = threadIdx.x % 128 == 0;
  int stage = 0, previous = 0;
  uint32_t parity = 0;
  for (int i = 0; i < count; ++i) {
    const uint8_t* weights = ring.stages + stage * Shape::kStageBytes + group * kBlockBytes;
    const uint64_t a = matrix_descriptor(weights);
    const uint64_t b = matrix_descriptor(ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes);
    barrier_wait(&ring.full[stage], parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < kBlockK / 16; ++k) {
      multiply<Shape::kRows>(sums, a + k * 2, b + k * 2);
    }
    products_commit();
    products_wait<1>();  // the stage before this one has been read
    if (signals && i > 0) barrier_arrive(&ring.empty[previous]);
    previous = stage;
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  products_wait<0>();
}

template <typename Shape>
__device__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kConsumers) : "memory");
}

// Registers to shared memory, as [row][output].
template <typename Shape>
__device__ void leave_sums(float* shared, const float (&sums)[Shape::kRows / 2]) {
  const int group = threadIdx.x / 128, t = threadIdx.x % 128;
  const int output = group * 64 + t / 32 * 16 + t % 32 / 4;
  if (output >= Shape::kHalves * 32) return;
#pragma unroll
  for (int i = 0; i < Shape::kRows / 2; ++i) {
    const int row = i / 4 * 8 + t % 4 * 2 + i % 2;
    shared[row * Shape::kSumStride + output + i % 4 / 2 * 8] = sums[i];
  }
}

__device__ inline float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Four neighbouring sums; `place` is theirs in the shared memory of each block of the cluster.
__device__ inline float4 whole_sum(const float* place, int split) {
  if (split == 1) return *reinterpret_cast<const float4*>(place);
  return add(hopper::load_shared_of(place, 0), hopper::load_shared_of(place, 1));
}

// silu(gate) * up. A result that is about to be rounded to bf16 takes the quick exponential and reciprocal, which err
// in the 18th bit or later: with the exact ones, 128 rows of this cost six microseconds a tile.
__device__ inline float swiglu(float gate, float up, bool quick) {
  if (quick) return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  return gate / (1.0f + expf(-gate)) * up;
}

__device__ inline void store4(const TileArgs& args, int64_t at, float4 v) {
  if (!args.y_bf16) {
    *reinterpret_cast<float4*>(static_cast<float*>(args.y) + at) = v;
    return;
  }
  const __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.y) + at) = *reinterpret_cast<const uint2*>(halves);
}

// Rows rank, rank + split, … of the tile, four outputs a thread; a few such at a time, so that their loads overlap.
template <typename Shape, bool kPairs>
__device__ void finish(const TileArgs& args, const float* sums, int rank, int half, int row) {
  constexpr int kAtOnce = 4;
  constexpr int kPieces = Shape::kHalves * (kPairs ? 4 : 8);
  const int first_output = half * (kPairs ? 16 : 32);
  const int pieces = (args.outputs - first_output) / 4;  // that exist, of a row
  const int rows = min(Shape::kRows, args.rows - row);
  const int count = (rows - rank + args.split - 1) / args.split * kPieces;
  const auto row_of = [&](int i) { return rank + i / kPieces * args.split; };
  const auto place_in_y = [&](int i) {
    return static_cast<int64_t>(row + row_of(i)) * args.outputs + first_output + i % kPieces * 4;
  };
  for (int begin = threadIdx.x; begin < count; begin += kAtOnce * Shape::kConsumers) {
    float4 v[kAtOnce], before[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * Shape::kConsumers;
      if (i >= count || i % kPieces >= pieces) continue;
      if (args.epilogue == Epilogue::kAdd) {
        before[j] = *reinterpret_cast<const float4*>(static_cast<const float*>(args.y) + place_in_y(i));
      }
      const int output = i % kPieces * 4;
      const float* place = sums + row_of(i) * Shape::kSumStride;
      if constexpr (kPairs) {
        place += output / 32 * 64 + output % 32;
        const float4 gate = whole_sum(place, args.split), up = whole_sum(place + 32, args.split);
        v[j] = {swiglu(gate.x, up.x, args.y_bf16), swiglu(gate.y, up.y, args.y_bf16), swiglu(gate.z, up.z, args.y_bf16),
                swiglu(gate.w, up.w, args.y_bf16)};
      } else {
        v[j] = whole_sum(place + output, args.split);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * Shape::kConsumers;
      if (i >= count || i % kPieces >= pieces) continue;
      store4(args, place_in_y(i), args.epilogue == Epilogue::kAdd ? add(before[j], v[j]) : v[j]);
    }
  }
}

template <typename Shape>
__device__ void finish(const TileArgs& args, const float* sums, int rank, int half, int row) {
  if (args.epilogue == Epilogue::kSwiGlu) {
    if constexpr (Shape::kHalves % 2 == 0) finish<Shape, true>(args, sums, rank, half, row);
  } else {
    finish<Shape, false>(args, sums, rank, half, row);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_tiles_kernel(const __grid_constant__ CUtensorMap x_map, const TileArgs args) {
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  const Ring ring{full, empty, dynamic + (1024 - shared_address(dynamic) % 1024) % 1024};
  const int rank = blockIdx.x % args.split, tile = blockIdx.x / args.split;
  const int half = tile / args.row_tiles * Shape::kHalves, row = tile % args.row_tiles * Shape::kRows;
  Slice slice;
  slice.begin = rank * args.k_blocks / args.split;
  slice.count = (rank + 1) * args.k_blocks / args.split - slice.begin;

  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&full[i], 2);
      barrier_init(&empty[i], Shape::kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  cuda::launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    if (threadIdx.x == Shape::kConsumers) produce_weights<Shape>(ring, args, slice, half);
    if (threadIdx.x == Shape::kConsumers + 32) produce_x<Shape>(ring, &x_map, slice, row);
    return;  // barriers of a cluster count threads that have ended as arrived
  }
  float registers[Shape::kRows / 2] = {};
  consume<Shape>(ring, slice.count, registers);
  consumers_sync<Shape>();  // nobody reads the ring any more
  float* sums = reinterpret_cast<float*>(ring.stages);
  leave_sums<Shape>(sums, registers);
  cuda::wait_for_predecessors();
  if (args.split == 1) {
    consumers_sync<Shape>();
    finish<Shape>(args, sums, rank, half, row);
  } else {
    cluster_sync();
    finish<Shape>(args, sums, rank, half, row);
    cluster_sync();  // the other may still be reading from here
  }
}

}  // namespace volley::ops
