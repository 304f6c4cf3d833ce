// Few rows against many weights on sm_90a: y = x W^T where reading W is the cost.
//
// The weights are the M side of the matrix unit (64 outputs at a time), the rows of x its N side, so that 8 rows cost
// no more tensor work than they must. One thread copies: blocks of weights and boxes of x go through a ring of stages
// in shared memory; the other warps multiply. It starts on the weights, which depend on no other kernel, while the
// predecessor still runs: a ring of 200 KB on every multiprocessor holds six microseconds of reading, which is more
// than it takes a kernel to end and its successor to see the results.
//
// `split` blocks share an output tile, one slice of k each. Each leaves the others' rows of its sums in scratch memory,
// waits until all have, and finishes its own rows, adding the slices in order. They are neighbours in the grid, and
// blocks start in the order of the grid, so the ones that are waited for are running or next to start. (Clusters would
// do this in shared memory, but only 30 clusters of four fit on the 132 multiprocessors of an H200 at a time.)
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/products.cuh"
#include "ops/linear/linear_cuda.h"

namespace volley::ops {

struct TileArgs {
  const uint8_t* weights = nullptr;  // packed
  void* y = nullptr;
  int64_t panels = 0;
  int k_blocks = 0;
  int rows = 0, outputs = 0;  // of y
  int row_tiles = 0;
  int split = 1;
  float* partial = nullptr;      // [tile][slice][row][output]; null when split is 1
  unsigned* arrivals = nullptr;  // [tile], zero between calls
  Epilogue epilogue = Epilogue::kStore;
  bool y_bf16 = false;
};

// kPanels * 64 outputs for kRows rows of x, by kGroups warpgroups and one producer warp.
template <int kPanels_, int kRows_>
struct TileShape {
  static constexpr int kPanels = kPanels_, kRows = kRows_;
  // One warpgroup holds the sums of up to 64 rows; beyond, each panel has its own.
  static constexpr int kGroups = kRows <= 64 ? 1 : kPanels;
  static constexpr int kGroupPanels = kPanels / kGroups;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;

  static constexpr int kWeightBytes = kPanels * 8192;
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  static constexpr int kStages = (225 << 10) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // the ring starts on 1024

  // Sums wait there as [row][output]; 4 floats of padding spread a column's writes over the banks.
  static constexpr int kSumStride = kPanels * 64 + 4;
  static_assert(kRows * kSumStride * 4 <= kStages * kStageBytes, "the sums take the place of the ring");
  static_assert(kStages >= 3);
};

struct Ring {
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // a stage's readers are done
  uint8_t* stages;
};

struct Slice {  // of k, in blocks
  int begin, count;
};

template <typename Shape>
__device__ void produce(const Ring& ring, const CUtensorMap* x_map, const TileArgs& args, Slice slice, int64_t panel,
                        int row) {
  using namespace hopper;
  const int panels = static_cast<int>(min(static_cast<int64_t>(Shape::kPanels), args.panels - panel));
  const uint8_t* weights = args.weights + (panel * args.k_blocks + slice.begin) * kBlockBytes;
  const int64_t panel_bytes = args.k_blocks * kBlockBytes;
  // Each weight is read once per tile of rows: with one tile it need not stay in the cache.
  const uint64_t weight_policy = args.row_tiles == 1 ? l2_evict_first() : l2_evict_normal();
  const uint64_t x_policy = l2_evict_last();
  const auto copy_weights = [&](int block, int stage) {
    barrier_expect(&ring.full[stage], panels * kBlockBytes + Shape::kRows * 128);
    uint8_t* to = ring.stages + stage * Shape::kStageBytes;
    for (int p = 0; p < panels; ++p) {
      bulk_copy(to + p * kBlockBytes, weights + p * panel_bytes + block * kBlockBytes, kBlockBytes, &ring.full[stage],
                weight_policy);
    }
  };
  const auto copy_x = [&](int block, int stage) {
    tensor_copy(ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes, x_map,
                (slice.begin + block) * static_cast<int>(kBlockK), row, &ring.full[stage], x_policy);
  };
  const int ahead = min(Shape::kStages, slice.count);
  for (int i = 0; i < ahead; ++i) copy_weights(i, i);
  wait_for_predecessors();
  for (int i = 0; i < ahead; ++i) copy_x(i, i);
  int stage = 0;
  uint32_t parity = 0;
  for (int i = ahead; i < slice.count; ++i) {
    barrier_wait(&ring.empty[stage], parity);
    copy_weights(i, stage);
    copy_x(i, stage);
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <typename Shape>
__device__ void consume(const Ring& ring, int count, float (&sums)[Shape::kGroupPanels][Shape::kRows / 2]) {
  using namespace hopper;
  const int group = threadIdx.x / 128;
  const bool signals = threadIdx.x % 128 == 0;
  int stage = 0, previous = 0;
  uint32_t parity = 0;
  for (int i = 0; i < count; ++i) {
    const uint8_t* weights = ring.stages + stage * Shape::kStageBytes + group * Shape::kGroupPanels * kBlockBytes;
    const uint64_t a = matrix_descriptor(weights);
    const uint64_t b = matrix_descriptor(ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes);
    barrier_wait(&ring.full[stage], parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < kBlockK / 16; ++k) {
#pragma unroll
      for (int p = 0; p < Shape::kGroupPanels; ++p) {
        multiply<Shape::kRows>(sums[p], a + p * (kBlockBytes / 16) + k * 2, b + k * 2);
      }
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

// Registers to shared memory, as [row][output].
template <typename Shape>
__device__ void leave_sums(float* shared, const float (&sums)[Shape::kGroupPanels][Shape::kRows / 2]) {
  const int group = threadIdx.x / 128, t = threadIdx.x % 128;
#pragma unroll
  for (int p = 0; p < Shape::kGroupPanels; ++p) {
    const int output = (group * Shape::kGroupPanels + p) * 64 + t / 32 * 16 + t % 32 / 4;
#pragma unroll
    for (int i = 0; i < Shape::kRows / 2; ++i) {
      const int row = i / 4 * 8 + t % 4 * 2 + i % 2;
      shared[row * Shape::kSumStride + output + i % 4 / 2 * 8] = sums[p][i];
    }
  }
}

__device__ inline float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Where the sums of a tile are: this block's in shared memory, those of the other slices in scratch.
struct Sums {
  const float* own;      // [row][kSumStride]
  const float* partial;  // [slice][row][output]
  int stride;            // of own
  int width;             // of partial: outputs of a tile
  int slice_floats;
  int rank, split;

  // Four neighbouring sums, over all slices in order.
  __device__ float4 whole(int row, int output) const {
    const float4 mine = *reinterpret_cast<const float4*>(own + row * stride + output);
    if (split == 1) return mine;
    float4 sum = {};
    for (int i = 0; i < split; ++i) {
      const float4 v =
          i == rank ? mine : __ldcg(reinterpret_cast<const float4*>(partial + i * slice_floats + row * width + output));
      sum = i == 0 ? v : add(sum, v);
    }
    return sum;
  }
};

// Leaves the rows that other blocks finish in scratch, and returns when all slices have done so.
template <typename Shape>
__device__ void exchange(const TileArgs& args, const Sums& sums, float* mine, unsigned* arrivals, int rows) {
  constexpr int kPieces = Shape::kPanels * 16;
  for (int i = threadIdx.x; i < rows * kPieces; i += Shape::kThreads) {
    const int row = i / kPieces, output = i % kPieces * 4;
    if (row % args.split == sums.rank) continue;
    __stcg(reinterpret_cast<float4*>(mine + row * sums.width + output),
           *reinterpret_cast<const float4*>(sums.own + row * sums.stride + output));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(arrivals, 1);
    while (hopper::load_acquire(arrivals) < static_cast<unsigned>(args.split)) __nanosleep(20);
  }
  __syncthreads();
}

// The last of the blocks to have read leaves the counter at zero for the next call.
__device__ inline void leave(unsigned* arrivals, int split) {
  if (threadIdx.x == 0 && atomicAdd(arrivals, 1) == static_cast<unsigned>(2 * split - 1)) *arrivals = 0;
}

__device__ inline float swiglu(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

__device__ inline void store4(const TileArgs& args, int64_t at, float4 v) {
  if (!args.y_bf16) {
    float4* y = reinterpret_cast<float4*>(static_cast<float*>(args.y) + at);
    *y = args.epilogue == Epilogue::kAdd ? add(*y, v) : v;
    return;
  }
  __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.y) + at) = *reinterpret_cast<const uint2*>(halves);
}

// Rows rank, rank + split, … of the tile, four outputs a thread.
template <typename Shape>
__device__ void finish(const TileArgs& args, const Sums& sums, int64_t panel, int row, int rows) {
  const bool pairs = args.epilogue == Epilogue::kSwiGlu;
  const int width = pairs ? Shape::kPanels * 32 : Shape::kPanels * 64;
  const int first_output = static_cast<int>(panel) * (pairs ? 32 : 64);
  const int pieces = min(width, args.outputs - first_output) / 4;
  const int own_rows = (rows - sums.rank + args.split - 1) / args.split;
  for (int i = threadIdx.x; i < own_rows * pieces; i += Shape::kThreads) {
    const int r = sums.rank + i / pieces * args.split, output = i % pieces * 4;
    float4 v;
    if (pairs) {
      const int place = output / 32 * 64 + output % 32;
      const float4 gate = sums.whole(r, place), up = sums.whole(r, place + 32);
      v = {swiglu(gate.x, up.x), swiglu(gate.y, up.y), swiglu(gate.z, up.z), swiglu(gate.w, up.w)};
    } else {
      v = sums.whole(r, output);
    }
    store4(args, static_cast<int64_t>(row + r) * args.outputs + first_output + output, v);
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
  const int64_t panel = static_cast<int64_t>(tile / args.row_tiles) * Shape::kPanels;
  const int row = tile % args.row_tiles * Shape::kRows;
  Slice slice;
  slice.begin = rank * args.k_blocks / args.split;
  slice.count = (rank + 1) * args.k_blocks / args.split - slice.begin;

  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], Shape::kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    if (threadIdx.x == Shape::kConsumers) produce<Shape>(ring, &x_map, args, slice, panel, row);
    __syncwarp();
  } else {
    float registers[Shape::kGroupPanels][Shape::kRows / 2] = {};
    consume<Shape>(ring, slice.count, registers);
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kConsumers) : "memory");  // nobody reads the ring any more
    leave_sums<Shape>(reinterpret_cast<float*>(ring.stages), registers);
  }
  wait_for_predecessors();
  __syncthreads();
  const int rows = min(Shape::kRows, args.rows - row);
  Sums sums;
  sums.own = reinterpret_cast<const float*>(ring.stages);
  sums.stride = Shape::kSumStride;
  sums.width = Shape::kPanels * 64;
  sums.slice_floats = Shape::kRows * sums.width;
  sums.rank = rank;
  sums.split = args.split;
  if (args.split > 1) {
    float* partial = args.partial + static_cast<int64_t>(tile) * args.split * sums.slice_floats;
    sums.partial = partial;
    exchange<Shape>(args, sums, partial + rank * sums.slice_floats, args.arrivals + tile, rows);
  }
  finish<Shape>(args, sums, panel, row, rows);
  if (args.split > 1) {
    __syncthreads();
    leave(args.arrivals + tile, args.split);
  }
}

}  // namespace volley::ops
