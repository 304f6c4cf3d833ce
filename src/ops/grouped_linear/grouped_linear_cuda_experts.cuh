// Both products of a mixture behind its router in one kernel on sm_90a: gate and up, then down.
//
// Blocks take tiles from one list, those of gate and up before those of down, and the ring of stages runs on from one
// to the other: the weights of down are on their way while the last tiles of gate and up are multiplied. Counters in
// memory order everything else: rows of h are fetched when all panels of gate and up for their tile of rows are
// written. Tiles are handed out one at a time, so a block only waits for tiles that a running block has taken: it does
// not matter how many blocks fit at once.
#pragma once

#include <algorithm>
#include <climits>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {

// How weights in bf16 are copied and multiplied; for codes, see grouped_linear_cuda_codes_experts.cu.
struct PlainExperts {
  using Args = ExpertsArgs;
  static __host__ __device__ const ExpertsArgs& products(const Args& args) { return args; }

  template <typename Shape>
  static __device__ __forceinline__ void copy(const Ring& ring, RingWriter& writer, const Args& args, bool gate_up,
                                              const GroupedTile& tile, int warp) {
    copy_weights<Shape>(ring, writer, gate_up ? args.gate_up : args.down, tile);
  }
  template <typename Shape, int kRows>
  static __device__ __forceinline__ void sum(const Ring& ring, RingReader& reader, const Args& args, bool gate_up,
                                             float (&sums)[kRows / 2]) {
    sum_tile<Shape, kRows>(ring, reader, gate_up ? args.gate_up.k_blocks : args.down.k_blocks, sums);
  }
};

// A counter that other blocks add to: a thread that sees a block's addition also sees the writes before it.
__device__ inline int32_t count_acquired(const int32_t* counter) {
  int32_t v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}
__device__ inline void count_released(int32_t* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

enum class Phase { kGateUp, kDown, kEnd };

struct ExpertsTile {
  GroupedTile tile;
  int row_tile;  // number among all experts' tiles of rows
  Phase phase;
};

// The tiles that a block has taken, from the thread that takes them to those that work on them.
struct TileQueue {
  static constexpr int kSlots = 4;
  uint64_t full[kSlots], empty[kSlots];
  ExpertsTile tiles[kSlots];
};

struct QueueReader {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++slot == TileQueue::kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// All threads that read a slot of the queue: those that multiply, those that fetch rows, and one of each further warp
// that copies weights.
template <typename Shape>
constexpr int kReaders = Shape::kConsumers + Shape::kXThreads + Shape::kCopyWarps - 1;

__device__ inline ExpertsTile take(TileQueue& queue, QueueReader& at) {
  hopper::barrier_wait(&queue.full[at.slot], at.parity);
  const ExpertsTile taken = queue.tiles[at.slot];
  hopper::barrier_arrive(&queue.empty[at.slot]);
  at.advance();
  return taken;
}

__device__ inline int tiles_across(int panels, int each) {
  return (panels + each - 1) / each;
}

// How many panels the tiles of a product have, up to kMost: of many tiles those with most panels cost least a panel, of
// few those that give all blocks equal work. The time for a block of k is about that of the tile's panels and 1.25
// more. The choice shows in no bit.
template <int kMost>
__device__ int panels_of_tiles(const GroupedArgs& args, int row_tiles) {
  const int blocks = static_cast<int>(gridDim.x);
  int best = 1, least = INT_MAX;
  for (int panels = 1; panels <= kMost; ++panels) {
    const int cost = tiles_across(row_tiles * tiles_across(args.panels, panels), blocks) * (4 * panels + 5);
    if (cost <= least) {
      best = panels;
      least = cost;
    }
  }
  return best;
}

// Both products' tiles, those of gate and up first.
template <typename Shape>
struct ExpertsTiles {
  const ExpertsArgs& args;
  const GroupedWork& work;
  int row_tiles = work.row_tiles[args.gate_up.experts];
  int up_panels = panels_of_tiles<Shape::kPanels>(args.gate_up, row_tiles);
  int down_panels = panels_of_tiles<Shape::kPanels>(args.down, row_tiles);
  int up_tiles = row_tiles * tiles_across(args.gate_up.panels, up_panels);
  int tiles = up_tiles + row_tiles * tiles_across(args.down.panels, down_panels);

  __device__ ExpertsTile at(int t) const {
    ExpertsTile taken = {};
    taken.phase = t >= tiles ? Phase::kEnd : t < up_tiles ? Phase::kGateUp : Phase::kDown;
    if (taken.phase == Phase::kGateUp) taken.tile = tile_of(args.gate_up, work, up_panels, t, &taken.row_tile);
    if (taken.phase == Phase::kDown) taken.tile = tile_of(args.down, work, down_panels, t - up_tiles, &taken.row_tile);
    return taken;
  }
};

// One thread: takes tiles, hands them to the others and copies its warp's part of their weights.
template <typename Shape, typename Weights>
__device__ void take_tiles(const Ring& ring, TileQueue& queue, const typename Weights::Args& args,
                           const GroupedWork& work, int first) {
  const ExpertsArgs& products = Weights::products(args);
  const ExpertsTiles<Shape> tiles{products, work};
  RingWriter writer;
  QueueReader at;
  for (int t = first;;) {
    const ExpertsTile taken = tiles.at(t);
    hopper::barrier_wait(&queue.empty[at.slot], at.parity ^ 1);
    queue.tiles[at.slot] = taken;
    hopper::barrier_arrive(&queue.full[at.slot]);
    at.advance();
    if (taken.phase == Phase::kEnd) return;
    Weights::template copy<Shape>(ring, writer, args, taken.phase == Phase::kGateUp, taken.tile, 0);
    // Taken only when its first stage is free, because another block may have room sooner.
    hopper::barrier_wait(&ring.empty[writer.stage], writer.parity);
    t = atomicAdd(products.dealt, 1);
  }
}

// The first thread of each further warp that copies weights.
template <typename Shape, typename Weights>
__device__ void copy_tiles(const Ring& ring, TileQueue& queue, const typename Weights::Args& args, int warp) {
  RingWriter writer;
  for (QueueReader at;;) {
    const ExpertsTile taken = take(queue, at);
    if (taken.phase == Phase::kEnd) return;
    Weights::template copy<Shape>(ring, writer, args, taken.phase == Phase::kGateUp, taken.tile, warp);
  }
}

template <typename Shape>
__device__ void produce_rows(const Ring& ring, TileQueue& queue, const ExpertsArgs& args, int thread, int* sources) {
  RingWriter writer;
  for (QueueReader at;;) {
    const ExpertsTile taken = take(queue, at);
    if (taken.phase == Phase::kEnd) return;
    x_sync<Shape>();  // no thread still reads the sources of the tile before
    const GroupedArgs& product = taken.phase == Phase::kGateUp ? args.gate_up : args.down;
    for (int r = thread; r < taken.tile.rows; r += Shape::kXThreads) {
      sources[r] = source_row(product, taken.tile.expert, taken.tile.row + r);
    }
    if (taken.phase == Phase::kDown && thread == 0) {
      while (count_acquired(args.written + taken.row_tile) != args.gate_up.panels) {
      }
    }
    x_sync<Shape>();
    fetch_rows<Shape>(ring, writer, product, taken.tile.rows, thread, sources);
  }
}

// The 128 threads of a panel.
__device__ inline void panel_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// Gives back the stages of a tile that has no panel for this warpgroup. One thread waits for them: no product holds the
// warps together here, and one that lagged by a turn of the ring would wait for a phase that is over.
template <typename Shape>
__device__ __forceinline__ void pass_over(const Ring& ring, RingReader& reader, int group, int k_blocks) {
#pragma unroll 1
  for (int block = 0; block < k_blocks; ++block) {
    if (threadIdx.x % 128 == 0) {
      hopper::barrier_wait(&ring.full[reader.stage], reader.parity);
      hopper::barrier_arrive(&ring.empty[reader.stage]);
    }
    if (++reader.stage == Shape::kStages) {
      reader.stage = 0;
      reader.parity ^= 1;
    }
  }
  panel_sync(group);  // nobody waits for the next tile's stages sooner
}

template <typename Shape, typename Weights, int kRows>
__device__ __forceinline__ void run_tile(const Ring& ring, RingReader& reader, const typename Weights::Args& own_args,
                                         const ExpertsTile& taken) {
  const ExpertsArgs& args = Weights::products(own_args);
  const GroupedTile& tile = taken.tile;
  const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int panel = tile.panel + group;
  const bool gate_up = taken.phase == Phase::kGateUp;
  if (group >= tile.panels) {
    return pass_over<Shape>(ring, reader, group, (gate_up ? args.gate_up : args.down).k_blocks);
  }
  float sums[kRows / 2] = {};
  Weights::template sum<Shape, kRows>(ring, reader, own_args, gate_up, sums);
  if (!gate_up) return finish_panel<PanelEnd::kPlain, kRows>(args.down, tile, panel, warp, sums);
  finish_panel<PanelEnd::kGateUpQuick, kRows>(args.gate_up, tile, panel, warp, sums);
  panel_sync(group);  // all have written
  if (threadIdx.x % 128 == 0) count_released(args.written + taken.row_tile);
}

// With the first of kRows that holds the tile's.
template <typename Shape, typename Weights, int kRows, int... kMore, typename... Arguments>
__device__ __forceinline__ void run_tile_of(int rows, Arguments&&... arguments) {
  if constexpr (sizeof...(kMore) == 0) {
    static_assert(kRows == Shape::kMaxRows);
    run_tile<Shape, Weights, kRows>(arguments...);
  } else if (rows <= kRows) {
    run_tile<Shape, Weights, kRows>(arguments...);
  } else {
    run_tile_of<Shape, Weights, kMore...>(rows, arguments...);
  }
}

template <typename Shape, typename Weights, int... kRows>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    experts_kernel(const __grid_constant__ typename Weights::Args own_args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (experts_ffn_cuda)
  using namespace hopper;
  const ExpertsArgs& args = Weights::products(own_args);
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ GroupedWork work;
  __shared__ TileQueue queue;
  __shared__ int sources[Shape::kMaxRows];
  const Ring ring = ring_in(dynamic, full, empty);
  if (threadIdx.x == 0) {
    init_stages<Shape>(ring, Shape::kArrivals, Shape::kPanels);
    for (int i = 0; i < TileQueue::kSlots; ++i) {
      barrier_init(&queue.full[i], 1);
      barrier_init(&queue.empty[i], kReaders<Shape>);
    }
    barrier_init_fence();
  }
  cuda::wait_for_predecessors();
  const int thread = static_cast<int>(threadIdx.x) - Shape::kConsumers;
  int first = 0;
  if (thread == 0) first = atomicAdd(args.dealt, 1);
  list_work<Shape::kWarps, Shape::kMaxRows>(args.gate_up, work);  // also makes the barriers visible
  cuda::launch_dependents();

  if (thread >= 0) {
    constexpr int kCopyThreads = Shape::kCopyWarps * 32;
    if (thread == 0) take_tiles<Shape, Weights>(ring, queue, own_args, work, first);
    if (thread > 0 && thread < kCopyThreads && thread % 32 == 0) {
      copy_tiles<Shape, Weights>(ring, queue, own_args, thread / 32);
    }
    if (thread >= kCopyThreads) produce_rows<Shape>(ring, queue, args, thread - kCopyThreads, sources);
    return;
  }
  RingReader reader;
  for (QueueReader at;;) {
    const ExpertsTile taken = take(queue, at);
    if (taken.phase == Phase::kEnd) return;
    run_tile_of<Shape, Weights, kRows...>(taken.tile.rows, ring, reader, own_args, taken);
  }
#else
  __trap();
#endif
}

template <typename Shape, typename Weights, int... kRows>
void launch_experts(Stream& stream, const typename Weights::Args& args, int processors) {
  const ExpertsArgs& products = Weights::products(args);
  const int64_t across = products.gate_up.panels + products.down.panels;
  const cuda::Launch how = persistent_blocks<Shape>(products.gate_up, across, processors);
  cuda::launch(experts_kernel<Shape, Weights, kRows...>, how, stream, args);
}

}  // namespace volley::ops
