// The kernel of grouped products with codes on sm_90a.
#pragma once

#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_codes_tiles.cuh"

namespace volley::ops {

template <typename Shape, typename Reading, int kRows>
__device__ __forceinline__ void multiply_codes(const Ring& ring, RingReader& reader, const GroupedCodeArgs& args,
                                               const GroupedTile& tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float sums[kRows / 2] = {};
  sum_codes<Shape, kRows, Reading>(ring, reader, args.codes, args.grouped.k_blocks, sums);
  finish_panel<Shape::kEnd, kRows>(args.grouped, tile, tile.panel + warp / 4, warp % 4, sums);
}

// With the first of kRows that holds the tile's.
template <typename Shape, typename Reading, int kRows, int... kMore>
__device__ __forceinline__ void multiply_codes_of(const Ring& ring, RingReader& reader, const GroupedCodeArgs& args,
                                                  const GroupedTile& tile) {
  if constexpr (sizeof...(kMore) == 0) {
    static_assert(kRows == Shape::kMaxRows);
    multiply_codes<Shape, Reading, kRows>(ring, reader, args, tile);
  } else if (tile.rows <= kRows) {
    multiply_codes<Shape, Reading, kRows>(ring, reader, args, tile);
  } else {
    multiply_codes_of<Shape, Reading, kMore...>(ring, reader, args, tile);
  }
}

template <typename Shape, typename Reading, int... kRows>
__global__ void __launch_bounds__(Shape::kThreads, 1) grouped_code_tiles_kernel(const GroupedCodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (grouped_codes_cuda)
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ GroupedWork work;
  __shared__ int sources[Shape::kMaxRows];
  const Ring ring{full, empty, dynamic + (1024 - shared_address(dynamic) % 1024) % 1024};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&full[i], Shape::kArrivals);
      barrier_init(&empty[i], Shape::kPanels);
    }
    barrier_init_fence();
  }
  if (!args.grouped.routing_ready) cuda::wait_for_predecessors();
  list_work<Shape::kWarps, Shape::kMaxRows>(args.grouped, work);  // and barriers are there
  cuda::launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    if constexpr (Shape::kUnevenRegisters) registers_shrink_to<72>();
    const int thread = static_cast<int>(threadIdx.x) - Shape::kConsumers;
    constexpr int kCopyThreads = Shape::kCopyWarps * 32;
    if (thread < kCopyThreads && thread % 32 == 0) {
      RingWriter writer;
      for_tiles<Shape::kPanels>(args.grouped, work, [&](const GroupedTile& tile) {
        copy_codes<Shape>(ring, writer, args.grouped, args.codes, tile, thread / 32);
      });
    }
    if (thread >= kCopyThreads) {
      cuda::wait_for_predecessors();
      produce_x<Shape>(ring, args.grouped, work, thread - kCopyThreads, sources);
    }
  } else {
    if constexpr (Shape::kUnevenRegisters) registers_grow_to<216>();
    // What comes before in the stream has ended when the first rows of x are there.
    RingReader reader;
    // Inlined although it is long: else the reader and the arguments would lie in memory.
    for_tiles<Shape::kPanels>(
        args.grouped, work, [&](const GroupedTile& tile) __attribute__((always_inline)) {
          multiply_codes_of<Shape, Reading, kRows...>(ring, reader, args, tile);
        });
  }
#else
  __trap();
#endif
}

template <typename Shape, typename Reading, int... kRows>
void launch_code_tiles(Stream& stream, const GroupedCodeArgs& code_args, int processors) {
  const GroupedArgs& args = code_args.grouped;
  const int64_t across = (args.panels + Shape::kPanels - 1) / Shape::kPanels;
  const int64_t most = std::min(args.experts, args.entry_count) + args.entry_count / Shape::kMaxRows;  // tiles of rows
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(processors, most * across)));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = true;
  cuda::launch(grouped_code_tiles_kernel<Shape, Reading, kRows...>, how, stream, code_args);
}

}  // namespace volley::ops
