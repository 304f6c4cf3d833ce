// Few rows against many weights on sm_90a: y = x W^T where reading W is the cost.
//
// The weights are the M side of the matrix unit (64 outputs at a time), the rows of x its N side, so that 8 rows cost
// no more tensor work than they must. Two threads copy: blocks of weights and boxes of x go through a ring of stages in
// shared memory; the other warps multiply. The weights, which depend on no other kernel, start while the predecessor
// still runs.
//
// Where a weight has too few tiles for the multiprocessors, two neighbours share a tile, one half of k each, as a
// cluster, and give one another half of their sums. What a kernel does between its last weight and its end is time in
// which nothing is read, and a trip through the L2 cache costs a microsecond there; hence shared memory, and hence two
// (larger clusters do not fill the chip: 30 of four fit on an H200 at a time). docs/cuda-notes.md has the measurements.
#pragma once

#include "device/cuda/launch.h"
#include "ops/linear/cuda/linear_cuda_blocks.cuh"
#include "ops/linear/cuda/linear_cuda_epilogue.cuh"
#include "ops/linear/cuda/linear_cuda_summaries.cuh"
#include "ops/linear/cuda/linear_cuda_tile_shape.cuh"

namespace volley::ops {

// Each warpgroup finishes its own sums (and with two slices of k, those of the same group of the other block): rows
// rank, rank + kSplit, … of the tile, four outputs a thread, so that rows go to memory in pieces of 256 bytes. The
// addends from y are loaded before the wait for the other block's sums, and those are all fetched at once: the limit is
// 25 bytes a nanosecond between two multiprocessors.
template <typename Shape, bool kPairs, int kSplit>
__device__ void finish(const TileArgs& args, const float* group_sums, int rank, int half, int row) {
  using namespace hopper;
  constexpr int kLanes = kPairs ? 8 : 16;       // for a row
  constexpr int kStep = 128 / kLanes * kSplit;  // rows from one of a thread's to the next
  constexpr int kPasses = (Shape::kRows + kStep - 1) / kStep;
  constexpr bool kFetches = kSplit == 2 && !kPairs;
  constexpr int kDivisor = kPasses % 8 == 0 && !kPairs ? 8
                           : kPasses % 4 == 0          ? 4
                           : kPasses % 3 == 0          ? 3
                           : kPasses % 2 == 0          ? 2
                                                       : 1;
  constexpr int kBatch = kFetches ? kPasses : kPasses < 4 ? kPasses : kDivisor;  // rows whose loads overlap
  const int group = threadIdx.x / 128, t = threadIdx.x % 128, lane = t % kLanes, first = rank + t / kLanes * kSplit;
  const int output = half * (kPairs ? 16 : 32) + group * (kPairs ? 32 : 64) + lane * 4;
  const bool exists = group * 64 + lane * 4 < Shape::kHalves * 32 && output < args.outputs;
  const int rows = min(Shape::kRows, args.rows - row);
  const int64_t at = static_cast<int64_t>(row + first) * args.outputs + output;
  const float* place = group_sums + first * Shape::kSumStride + lane * 4;
  const uint32_t there = kSplit == 2 ? shared_address_in(place, 1 - rank) : 0;

  float4 before[kBatch], other[kBatch], weight_scale[2] = {}, bias = {};
  float row_scale[kBatch] = {};
  if constexpr (Shape::kScalesSums) {
    const float* scales = args.weight_scales + half * 32 + group * 64 + lane * 4;
    for (int i = 0; i < (kPairs ? 2 : 1); ++i) {
      if (exists) weight_scale[i] = *reinterpret_cast<const float4*>(scales + i * 32);
    }
  }
  if constexpr (Shape::kBiased) {
    if (exists) bias = *reinterpret_cast<const float4*>(args.bias + output);
  }
  const bool sends = Shape::kSends && !kPairs && args.sent.turns != nullptr;
  const uint64_t turns = sends ? turns_so_far(args.sent) : 0;
  int from = 0;
  const auto for_rows = [&](const auto& use) {  // use(i, which of the thread's rows)
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (exists && first + (from + i) * kStep < rows) use(i, from + i);
    }
  };
  const auto place_in_y = [&](int i) { return at + static_cast<int64_t>(i * kStep) * args.outputs; };
  const auto own = [&](int i, int offset) {
    return *reinterpret_cast<const float4*>(place + i * kStep * Shape::kSumStride + offset);
  };
  const auto others = [&](int i, int offset) {
    return load_shared_in(there + (i * kStep * Shape::kSumStride + offset) * 4);
  };
  const auto whole = [&](int i, int offset) {
    return kSplit == 1 ? own(i, offset) : add(own(i, offset), others(i, offset));
  };
  const bool adds = !kPairs && args.kind == EndKind::kAdd;
  const auto scale = [&](float4 sums, int i, int of) {
    return Shape::kScalesSums ? scaled(sums, weight_scale[of], row_scale[i]) : sums;
  };
  const auto read_before = [&] {
    if constexpr (Shape::kScalesSums) {
      for_rows([&](int i, int r) { row_scale[i] = args.row_scales[row + first + r * kStep]; });
    }
    if (!adds) return;
    for_rows([&](int i, int r) {
      before[i] = *reinterpret_cast<const float4*>(static_cast<const float*>(args.y) + place_in_y(r));
    });
  };
  read_before();
  if constexpr (kSplit == 2) cluster_wait();
#pragma unroll 1
  for (; from < kPasses && from * kStep < rows; from += kBatch) {
    if (from > 0) read_before();
    if constexpr (kFetches) for_rows([&](int i, int r) { other[i] = others(r, 0); });
    if (sends) {
      for_rows([&](int i, int r) {
        const float4 v = scale(kFetches ? add(own(r, 0), other[i]) : own(r, 0), i, 0);
        send_sums(args.sent, turns, static_cast<int>(place_in_y(r)), v);
      });
      continue;
    }
    for_rows([&](int i, int r) {
      float4 v;
      if constexpr (kPairs) {
        v = gated(args.kind, scale(whole(r, 0), i, 0), scale(whole(r, 32), i, 1), args.y_bf16);
      } else {
        v = scale(kFetches ? add(own(r, 0), other[i]) : own(r, 0), i, 0);
        if constexpr (Shape::kBiased) v = add(v, bias);
        if (adds) v = add(before[i], v);
      }
      store4(args.y, args.y_bf16, place_in_y(r), v);
    });
  }
}

template <typename Shape, int kSplit>
__device__ void finish(const TileArgs& args, const float* group_sums, int rank, int half, int row) {
  if (has_gates(args.kind)) {
    if constexpr (Shape::kHalves % 2 == 0) finish<Shape, true, kSplit>(args, group_sums, rank, half, row);
  } else {
    finish<Shape, false, kSplit>(args, group_sums, rank, half, row);
  }
}

// Two slices of k, small tiles: of each 16 outputs, the first block of the cluster finishes the first 8 and the second
// the others. Each sends the sums that the other finishes, and adds the received sums to its own. 8 neighbouring fp32
// outputs are a whole sector of memory. (SwiGLU needs gates and ups of one thread, and takes the other way.)
template <typename Shape>
__device__ void exchange_and_finish(const Ring& ring, const TileArgs& args, const float (&sums)[Shape::kRows / 2],
                                    int rank, int half, int row) {
  using namespace hopper;
  constexpr int kPairs = Shape::kRows / 8;
  const int t = threadIdx.x, in_tile = t / 32 * 16 + t % 32 / 4;
  const bool exists = in_tile / 32 < Shape::kHalves;  // the last group's rows to spare
  const int output = half * 32 + in_tile + rank * 8, first_row = row + t % 4 * 2;
  const float2* const place = reinterpret_cast<const float2*>(ring.stages + Shape::kRingBytes + Shape::kSpareBytes) + t;
  const uint32_t there = shared_address_in(place, 1 - rank);
  cluster_wait();  // the other block has begun
  float2 kept[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const float2 first = {sums[4 * j], sums[4 * j + 1]}, second = {sums[4 * j + 2], sums[4 * j + 3]};
    kept[j] = rank == 0 ? first : second;
    if (exists) store_shared_in(there + j * Shape::kConsumers * 8, rank == 0 ? second : first);
  }
  cluster_arrive();
  cuda::wait_for_predecessors();
  const bool valid = exists && output < args.outputs;
  const int64_t at = static_cast<int64_t>(first_row) * args.outputs + output;
  const auto for_values = [&](const auto& use) {
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int r = i / 2 * 8 + i % 2;
      if (valid && first_row + r < args.rows) use(i, at + r * args.outputs);
    }
  };
  const bool sends = Shape::kSends && Shape::kExchangesSent && args.sent.turns != nullptr;
  const uint64_t turns = sends ? turns_so_far(args.sent) : 0;
  float before[2 * kPairs], row_scale[2 * kPairs] = {}, weight_scale = 1, bias = 0;
  if constexpr (Shape::kBiased) {
    if (valid) bias = args.bias[output];
  }
  if constexpr (Shape::kScalesSums) {
    if (valid) weight_scale = args.weight_scales[output];
    for_values([&](int i, int64_t) { row_scale[i] = args.row_scales[first_row + i / 2 * 8 + i % 2]; });
  }
  if (args.kind == EndKind::kAdd) {
    for_values([&](int i, int64_t to) { before[i] = static_cast<const float*>(args.y)[to]; });
  }
  cluster_wait();
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    if (!exists) continue;  // nothing was sent there
    const float2 other = place[j * Shape::kConsumers];
    kept[j] = {kept[j].x + other.x, kept[j].y + other.y};
  }
  const auto sum = [&](int i) {
    const float v = i % 2 == 0 ? kept[i / 2].x : kept[i / 2].y;
    return Shape::kScalesSums ? scaled(v, weight_scale, row_scale[i]) : v;
  };
  if (sends) {
    return for_values([&](int i, int64_t to) { send_sums(args.sent, turns, static_cast<int>(to), sum(i)); });
  }
  for_values([&](int i, int64_t to) {
    float v = sum(i);
    if constexpr (Shape::kBiased) v += bias;
    if (args.kind == EndKind::kAdd) v += before[i];
    if (args.y_bf16) {
      static_cast<__nv_bfloat16*>(args.y)[to] = __float2bfloat16_rn(v);
    } else {
      static_cast<float*>(args.y)[to] = v;
    }
  });
}

// Through shared memory, where the ring was.
template <typename Shape>
__device__ __forceinline__ void leave_and_finish(const Ring& ring, const TileArgs& args,
                                                 const float (&registers)[Shape::kRows / 2], int rank, int half,
                                                 int row) {
  consumers_sync<Shape>();  // no thread still reads the ring
  float* sums = reinterpret_cast<float*>(ring.stages) + threadIdx.x / 128 * Shape::kRows * Shape::kSumStride;
  leave_sums<Shape>(sums, registers);
  cuda::wait_for_predecessors();
  group_sync<Shape>();
  if constexpr (Shape::kShared) {
    hopper::cluster_arrive();
    finish<Shape, 1>(args, sums, 0, half, row);
    hopper::cluster_wait();  // the other block may still be signalling to here
  } else if (args.split == 1) {
    finish<Shape, 1>(args, sums, 0, half, row);
  } else {
    hopper::cluster_arrive();
    finish<Shape, 2>(args, sums, rank, half, row);
    hopper::cluster_arrive_relaxed();  // fetched data are stored already, so no wait is needed
    hopper::cluster_wait();            // the other has fetched
  }
}

template <typename Shape>
__device__ void consume_and_finish(const Ring& ring, const TileArgs& args, Slice slice, int rank, int half, int row) {
  const bool exchanges = args.split == 2 && !has_gates(args.kind) &&
                         (!Shape::kSends || Shape::kExchangesSent || args.sent.turns == nullptr);
  // The other block must have begun before anything is sent there.
  if (Shape::kExchangeOutsideRing && exchanges) hopper::cluster_arrive();
  // They are wanted last, and read from memory.
  if (Shape::kScalesSums && threadIdx.x < Shape::kHalves && half + threadIdx.x < args.halves) {
    hopper::prefetch_to_l2(args.weight_scales + (half + threadIdx.x) * 32);
  }
  float registers[Shape::kRows / 2] = {};
  if constexpr (Shape::kInBlocks) {
    consume_blocks<Shape>(ring, args, slice, half, registers);
  } else {
    RingReader reader;
    consume<Shape>(ring, reader, slice.count, registers);
  }
  if (Shape::kSends && args.sent.turns != nullptr) let_sums_start();
  if constexpr (Shape::kExchangeOutsideRing) {
    if (exchanges) return exchange_and_finish<Shape>(ring, args, registers, rank, half, row);
  }
  leave_and_finish<Shape>(ring, args, registers, rank, half, row);
}

// A block's work: its place in the cluster, its tile, and its slice of k.
struct TilePlace {
  int rank, row, half;
  Slice slice;
};

template <typename Shape>
__device__ __forceinline__ TilePlace tile_place(const TileArgs& args) {
  const int cluster = Shape::kShared ? 2 : args.split;
  const int rank = blockIdx.x % cluster, tile = blockIdx.x / cluster;
  const int row = tile % args.row_tiles * Shape::kRows;
  const int half = (tile / args.row_tiles * (Shape::kShared ? 2 : 1) + (Shape::kShared ? rank : 0)) * Shape::kHalves;
  Slice slice{0, args.k_blocks};
  if constexpr (!Shape::kShared) {
    slice.begin = rank * args.k_blocks / args.split;
    slice.count = (rank + 1) * args.k_blocks / args.split - slice.begin;
  }
  return {rank, row, half, slice};
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_tiles_kernel(const __grid_constant__ CUtensorMap x_map, const TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (linear_cuda_kernel)
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  const Ring ring = ring_in(dynamic, full, empty);
  const auto [rank, row, half, slice] = tile_place<Shape>(args);

  if (threadIdx.x == 0) {
    init_stages<Shape>(ring, 2, Shape::kInBlocks ? Shape::kConsumers / 32 : Shape::kGroups * (Shape::kShared ? 2 : 1));
    barrier_init_fence();
  }
  if constexpr (Shape::kShared) {
    cluster_sync();  // the other block copies to here
  } else {
    __syncthreads();
  }
  if (!Shape::kSends || args.sent.turns == nullptr) cuda::launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    if constexpr (Shape::kUnevenRegisters) registers_shrink_to<32>();
    if (threadIdx.x == Shape::kConsumers) produce_weights<Shape>(ring, args, slice, half, rank);
    if (threadIdx.x == Shape::kConsumers + 32) {
      if constexpr (Shape::kInBlocks) {
        produce_scaled_x<Shape>(ring, &x_map, args, slice, row);
      } else {
        produce_x<Shape>(ring, &x_map, slice, row, rank);
      }
    }
    // They end here: barriers of a cluster count threads that have ended as arrived.
  } else {
    if constexpr (Shape::kUnevenRegisters) registers_grow_to<160>();
    if constexpr (Shape::kSummarises) {
      consume_and_summarise<Shape>(ring, args, slice, half, row);
    } else {
      consume_and_finish<Shape>(ring, args, slice, rank, half, row);
    }
  }
#else
  __trap();
#endif
}

template <typename Shape>
cuda::Launch tile_launch(const TileArgs& args) {
  cuda::Launch how;
  const int across = (args.halves + Shape::kHalves - 1) / Shape::kHalves;
  how.cluster = Shape::kShared ? 2 : static_cast<unsigned>(args.split);
  how.grid = dim3(static_cast<unsigned>((Shape::kShared ? (across + 1) / 2 : across) * args.row_tiles) * how.cluster);
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = true;
  return how;
}

}  // namespace volley::ops
