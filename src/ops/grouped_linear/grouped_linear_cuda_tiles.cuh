// Grouped products on sm_90a. Weights are the M side of the matrix unit and an expert's rows its N side, so that few
// rows cost little tensor work. The kernel of a whole mixture (grouped_linear_cuda_experts.cuh) uses the same parts.
//
// A block stays on its multiprocessor and takes one tile after the other from the device's list. Its ring of stages
// runs on from tile to tile: while the warpgroups that multiply finish one, the copies of the next are under way. A
// thread of each copying warp copies blocks of weights; one to three warps fetch the rows of x, which lie anywhere, 16
// bytes a lane. The instruction's N is chosen for each tile by its number of rows, and changes no bit.
#pragma once

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"
#include "ops/linear/cuda/linear_cuda_fragments.cuh"
#include "ops/linear/cuda/linear_cuda_ring.cuh"

namespace volley::ops {

template <int kPanels_, int kMaxRows_, PanelEnd kEnd_>
struct GroupedShape {
  static constexpr int kPanels = kPanels_, kMaxRows = kMaxRows_;
  static constexpr PanelEnd kEnd = kEnd_;
  static constexpr int kConsumers = kPanels * 128;  // a warpgroup a panel
  static constexpr int kCopyWarps = 1, kXThreads = 96;
  static constexpr int kThreads = kConsumers + kCopyWarps * 32 + kXThreads, kWarps = kThreads / 32;
  // Many sums need more registers than an even share of 168: the warps that copy give up most of theirs.
  static constexpr bool kUnevenRegisters = kMaxRows > 128;
  static constexpr int kArrivals = 1 + kXThreads;  // arrivals that fill a stage

  static constexpr Common kCommon = Common::kNothing;
  static constexpr bool kFp8 = false, kCountsGivenBack = false;
  static constexpr bool kThreadsCopy = true;
  static constexpr int kProductLimit = 256;
  static constexpr int kWeightBytes = kPanels * static_cast<int>(kBlockBytes);
  static constexpr int kMSideAt = 0, kNSideAt = kWeightBytes;  // in a stage
  static constexpr int kStageBytes = kWeightBytes + kMaxRows * 128;
  static constexpr int kOwnBytes = static_cast<int>(sizeof(GroupedWork)) + kMaxRows * 4 + 1024;  // beside the ring
  static constexpr int kStages = ((225 << 10) - 1024 - kOwnBytes) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // the ring starts on 1024
  static_assert(kStageBytes % 1024 == 0 && kStages >= 3);
};

// The same for an instruction's N.
template <typename Shape, int kRows>
struct GroupedColumns : Shape {
  static constexpr int kColumns = kRows;
};

struct RingWriter {
  int stage = 0;
  uint32_t parity = 1;  // a wait for a stage that was never read ends at once

  template <typename Shape>
  __device__ void advance() {
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread calls it.
template <typename Shape>
__device__ __forceinline__ void copy_weights(const Ring& ring, RingWriter& writer, const GroupedArgs& args,
                                             const GroupedTile& tile) {
  using namespace hopper;
  const int panels = tile.panels;
  const int64_t panel_bytes = static_cast<int64_t>(args.k_blocks) * kBlockBytes;
  const uint8_t* from = args.weights + tile.expert * args.expert_bytes + tile.panel * panel_bytes;
  const uint64_t policy = tile.alone ? l2_evict_first() : l2_evict_normal();
#pragma unroll 1
  for (int block = 0; block < args.k_blocks; ++block, from += kBlockBytes) {
    barrier_wait(&ring.empty[writer.stage], writer.parity);
    barrier_expect(&ring.full[writer.stage], panels * static_cast<int>(kBlockBytes));
    uint8_t* to = ring.stages + writer.stage * Shape::kStageBytes;
    for (int p = 0; p < panels; ++p) {
      bulk_copy(to + p * kBlockBytes, from + p * panel_bytes, kBlockBytes, &ring.full[writer.stage], policy);
    }
    writer.advance<Shape>();
  }
}

// The threads that fetch x.
template <typename Shape>
__device__ void x_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kXThreads) : "memory");
}

// Called by the threads that fetch x; `thread` is the number among them. sources: rows of x, in shared memory of them
// all.
template <typename Shape>
__device__ __forceinline__ void fetch_rows(const Ring& ring, RingWriter& writer, const GroupedArgs& args, int rows,
                                           int thread, const int* sources) {
#pragma unroll 1
  for (int block = 0; block < args.k_blocks; ++block) {
    hopper::barrier_wait(&ring.empty[writer.stage], writer.parity);
    const uint32_t to = hopper::shared_address(ring.stages + writer.stage * Shape::kStageBytes + Shape::kNSideAt);
#pragma unroll 4
    for (int i = thread; i < rows * 8; i += Shape::kXThreads) {
      const int r = i / 8, piece = i % 8, k = block * static_cast<int>(kBlockK) + piece * 8;
      const int64_t at = (static_cast<int64_t>(sources[r]) * args.x_step + (k < args.k ? k : 0)) * 2;
      fragments::copy16(to + fragments::swizzled(r, piece), args.x + at, k < args.k ? 16 : 0);
    }
    hopper::barrier_arrive_after_copies(&ring.full[writer.stage]);
    writer.advance<Shape>();
  }
}

template <typename Shape>
__device__ void produce_x(const Ring& ring, const GroupedArgs& args, const GroupedWork& work, int thread,
                          int* sources) {
  RingWriter writer;
  for_tiles<Shape::kPanels>(args, work, [&](const GroupedTile& tile) {
    x_sync<Shape>();  // no thread still reads the sources of the tile before
    for (int r = thread; r < tile.rows; r += Shape::kXThreads) sources[r] = source_row(args, tile.expert, tile.row + r);
    x_sync<Shape>();
    fetch_rows<Shape>(ring, writer, args, tile.rows, thread, sources);
  });
}

// Adds up a tile, all of k, and gives its last stage back.
template <typename Shape, int kRows>
__device__ __forceinline__ void sum_tile(const Ring& ring, RingReader& reader, int k_blocks, float (&sums)[kRows / 2]) {
  consume<GroupedColumns<Shape, kRows>>(ring, reader, k_blocks, sums);
  if (threadIdx.x % 128 == 0) hopper::barrier_arrive(&ring.empty[reader.held]);  // before this tile's end is written
  reader.held = -1;
}

// How weights in bf16 are copied and multiplied; for codes, see grouped_linear_cuda_codes_tiles.cuh.
struct PlainWeights {
  using Args = GroupedArgs;
  static __host__ __device__ const GroupedArgs& grouped(const Args& args) { return args; }

  // One thread of each warp that copies calls it. warp: which of them.
  template <typename Shape>
  static __device__ __forceinline__ void copy(const Ring& ring, RingWriter& writer, const Args& args,
                                              const GroupedTile& tile, int warp) {
    copy_weights<Shape>(ring, writer, args, tile);
  }
  template <typename Shape, int kRows>
  static __device__ __forceinline__ void sum(const Ring& ring, RingReader& reader, const Args& args,
                                             float (&sums)[kRows / 2]) {
    sum_tile<Shape, kRows>(ring, reader, args.k_blocks, sums);
  }
};

template <typename Shape, typename Weights, int kRows>
__device__ __forceinline__ void multiply_tile(const Ring& ring, RingReader& reader, const typename Weights::Args& args,
                                              const GroupedTile& tile) {
  float sums[kRows / 2] = {};
  Weights::template sum<Shape, kRows>(ring, reader, args, sums);
  finish_panel<Shape::kEnd, kRows>(Weights::grouped(args), tile, tile.panel + static_cast<int>(threadIdx.x) / 128,
                                   static_cast<int>(threadIdx.x) / 32 % 4, sums);
}

// With the first of kRows that holds the tile's.
template <typename Shape, typename Weights, int kRows, int... kMore>
__device__ __forceinline__ void multiply_tile_of(const Ring& ring, RingReader& reader,
                                                 const typename Weights::Args& args, const GroupedTile& tile) {
  if constexpr (sizeof...(kMore) == 0) {
    static_assert(kRows == Shape::kMaxRows);
    multiply_tile<Shape, Weights, kRows>(ring, reader, args, tile);
  } else if (tile.rows <= kRows) {
    multiply_tile<Shape, Weights, kRows>(ring, reader, args, tile);
  } else {
    multiply_tile_of<Shape, Weights, kMore...>(ring, reader, args, tile);
  }
}

template <typename Shape, typename Weights, int... kRows>
__global__ void __launch_bounds__(Shape::kThreads, 1) grouped_tiles_kernel(const typename Weights::Args own_args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (grouped_cuda_kernel)
  using namespace hopper;
  const GroupedArgs& args = Weights::grouped(own_args);
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ GroupedWork work;
  __shared__ int sources[Shape::kMaxRows];
  const Ring ring = ring_in(dynamic, full, empty);
  if (threadIdx.x == 0) {
    init_stages<Shape>(ring, Shape::kArrivals, Shape::kPanels);
    barrier_init_fence();
  }
  if (!args.routing_ready) cuda::wait_for_predecessors();
  list_work<Shape::kWarps, Shape::kMaxRows>(args, work);  // also makes the barriers visible
  cuda::launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    if constexpr (Shape::kUnevenRegisters) registers_shrink_to<72>();
    const int thread = static_cast<int>(threadIdx.x) - Shape::kConsumers;
    constexpr int kCopyThreads = Shape::kCopyWarps * 32;
    if (thread < kCopyThreads && thread % 32 == 0) {
      RingWriter writer;
      for_tiles<Shape::kPanels>(args, work, [&](const GroupedTile& tile) {
        Weights::template copy<Shape>(ring, writer, own_args, tile, thread / 32);
      });
    }
    if (thread >= kCopyThreads) {
      cuda::wait_for_predecessors();
      produce_x<Shape>(ring, args, work, thread - kCopyThreads, sources);
    }
  } else {
    if constexpr (Shape::kUnevenRegisters) registers_grow_to<216>();
    // Earlier kernels of the stream have ended when the first rows of x have arrived.
    RingReader reader;
    // Inlined although it is long: else the reader and the arguments would lie in memory.
    for_tiles<Shape::kPanels>(
        args, work, [&](const GroupedTile& tile) __attribute__((always_inline)) {
          multiply_tile_of<Shape, Weights, kRows...>(ring, reader, own_args, tile);
        });
  }
#else
  __trap();
#endif
}

// A block a multiprocessor, or as many as there can be tiles of Shape's rows by `across`.
template <typename Shape>
cuda::Launch persistent_blocks(const GroupedArgs& args, int64_t across, int processors) {
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / Shape::kMaxRows;  // tiles of rows
  return {.grid = cuda::dims(std::min<int64_t>(processors, most * across)),
          .block = dim3(Shape::kThreads),
          .shared_bytes = Shape::kSharedBytes,
          .early = true};
}

template <typename Shape, typename Weights, int... kRows>
void launch_grouped_tiles(Stream& stream, const typename Weights::Args& own_args, int processors) {
  const GroupedArgs& args = Weights::grouped(own_args);
  const int64_t across = (args.panels + Shape::kPanels - 1) / Shape::kPanels;
  const cuda::Launch how = persistent_blocks<Shape>(args, across, processors);
  cuda::launch(grouped_tiles_kernel<Shape, Weights, kRows...>, how, stream, own_args);
}

// A block takes one panel where pairs would leave half of the multiprocessors without work. It shows in no bit.
template <PanelEnd kEnd>
void launch_few_rows(Stream& stream, const GroupedArgs& args, int processors) {
  constexpr int kRows = static_cast<int>(GroupedTileSize::kFewRows);
  const int64_t panels = std::min(args.experts, args.likely) * args.panels;
  if (panels <= processors) {
    return launch_grouped_tiles<GroupedShape<1, kRows, kEnd>, PlainWeights, 8, 16, 32, 64>(stream, args, processors);
  }
  launch_grouped_tiles<GroupedShape<2, kRows, kEnd>, PlainWeights, 8, 16, 32, 64>(stream, args, processors);
}

template <PanelEnd kEnd>
void launch_many_rows(Stream& stream, const GroupedArgs& args, int processors) {
  using Shape = GroupedShape<2, static_cast<int>(GroupedTileSize::kManyRows), kEnd>;
  launch_grouped_tiles<Shape, PlainWeights, 32, 64, 96, 128, 160, 256>(stream, args, processors);
}

// Compiled in files of their own (launchers.cmake): their instructions are many.
using GroupedLaunch = void(Stream& stream, const GroupedArgs& args, int processors);
GroupedLaunch launch_grouped_few_gate_up, launch_grouped_few_plain;
GroupedLaunch launch_grouped_many_gate_up, launch_grouped_many_plain;

}  // namespace volley::ops
