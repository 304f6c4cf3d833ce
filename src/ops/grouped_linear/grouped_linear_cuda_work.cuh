// Shared by the grouped kernels of all GPUs: the tiles that the device's routing defines, and the ends of their sums.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/block_sum.cuh"
#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/linear/cuda/linear_cuda_epilogue.cuh"

namespace volley::ops {

// In shared memory.
struct GroupedWork {
  int offsets[kMaxExperts + 1];    // grouped rows of the experts before
  int row_tiles[kMaxExperts + 1];  // tiles of rows of the experts before
};

// Some rows of an expert, and some of its panels.
struct GroupedTile {
  int expert, panel, panels, row, rows;  // first panel and how many; first grouped row and how many
  bool alone;                            // no other tile has these weights
};

// Tile `t` of those of `panels` panels each. Tiles of the same weights are neighbours, so that one of them reads from
// memory and the others from the cache. row_tile: which of all experts'.
__device__ inline GroupedTile tile_of(const GroupedArgs& args, const GroupedWork& work, int panels, int t,
                                      int* row_tile = nullptr) {
  const int experts = args.experts, across = (args.panels + panels - 1) / panels;
  int expert = 0, end = experts;  // the last with row_tiles * across <= t
  while (end - expert > 1) {
    const int middle = (expert + end) / 2;
    (work.row_tiles[middle] * across <= t ? expert : end) = middle;
  }
  const int tiles = work.row_tiles[expert + 1] - work.row_tiles[expert];
  const int own = t - work.row_tiles[expert] * across, begin = work.offsets[expert];
  const int rows = work.offsets[expert + 1] - begin, part = own % tiles;
  const int first = rows * part / tiles, last = rows * (part + 1) / tiles;
  if (row_tile != nullptr) *row_tile = work.row_tiles[expert] + part;
  const int panel = own / tiles * panels;
  return {expert, panel, min(panels, args.panels - panel), begin + first, last - first, tiles == 1};
}

// All threads of a block of kWarps warps call it; they see the work afterwards.
template <int kWarps, int kMaxRows>
__device__ void list_work(const GroupedArgs& args, GroupedWork& work) {
  constexpr int kThreads = kWarps * 32, kEach = kMaxExperts / kThreads + 1;
  int counts[kEach], all = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = static_cast<int>(threadIdx.x) * kEach + i;
    counts[i] = 0;
    if (e > args.experts) continue;
    // Reads from the L2 cache, because this multiprocessor's cache may hold an older routing.
    const auto offset = [&](int i) { return args.each_rows > 0 ? i * args.each_rows : __ldcg(args.offsets + i); };
    const int begin = offset(e), end = e < args.experts ? offset(e + 1) : begin;
    work.offsets[e] = begin;
    counts[i] = (end - begin + kMaxRows - 1) / kMaxRows;
    all += counts[i];
  }
  int before = cuda::block_sum_before<kWarps>(all);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = static_cast<int>(threadIdx.x) * kEach + i;
    if (e <= args.experts) work.row_tiles[e] = before;
    before += counts[i];
  }
  __syncthreads();
}

// Calls run(tile) for each tile of this block.
template <int kPanels, typename Run>
__device__ __forceinline__ void for_tiles(const GroupedArgs& args, const GroupedWork& work, const Run& run) {
  const int across = (args.panels + kPanels - 1) / kPanels, count = work.row_tiles[args.experts] * across;
#pragma unroll 1
  for (int t = static_cast<int>(blockIdx.x); t < count; t += static_cast<int>(gridDim.x)) {
    run(tile_of(args, work, kPanels, t));
  }
}

__device__ inline int entry_of(const GroupedArgs& args, int expert, int grouped) {
  return args.each_rows > 0 ? (grouped - expert * args.each_rows) * args.experts + expert : args.entries[grouped];
}

// The row of x of an expert's grouped row.
__device__ inline int source_row(const GroupedArgs& args, int expert, int grouped) {
  if (args.each_rows > 0) return entry_of(args, expert, grouped);
  return args.rows == GroupedRows::kIn ? args.entries[grouped] / args.top_k : grouped;
}

// Not inlined: many instructions, and only y in fp32 takes them.
static __device__ __noinline__ float gated_one_exactly(EndKind kind, float gate, float up) {
  return gated(kind, gate, up);
}

// A NaN stays one, as it does not with fminf().
__device__ inline void clamp_pair(float& gate, float& up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
}
static __device__ __noinline__ float clamped_swiglu_exactly(float gate, float up, SwiGluClamp clamp) {
  clamp_pair(gate, up, clamp.limit);
  return gate / (1.0f + expf(-clamp.alpha * gate)) * (up + 1.0f);
}
__device__ inline float clamped_swiglu_quickly(float gate, float up, const SwiGluClamp& clamp) {
  clamp_pair(gate, up, clamp.limit);
  return gate * sigmoid_quickly(clamp.alpha * gate) * (up + 1.0f);
}

// The kinds of results that finish_panel() makes of sums.
enum class PanelEnd {
  kPlain,
  kGateUp,       // as GroupedArgs::end says
  kGateUpQuick,  // the same for y in bf16 alone
};

// Writes the sums of one panel and kRows rows to y. Warp 0 to 3 holds 16 weight rows of the panel each: sums[4 j + 2 i
// + e] of a lane is that of weight row 16 warp + lane / 4 + 8 i and row 8 j + 2 (lane % 4) + e of the tile.
template <PanelEnd kEnd, int kRows>
__device__ __forceinline__ void finish_panel(const GroupedArgs& args, const GroupedTile& tile, int panel, int warp,
                                             const float (&sums)[kRows / 2]) {
  const int lane = threadIdx.x % 32, output = warp * 8 + lane / 4, first_row = lane % 4 * 2;
  constexpr bool kGateUp = kEnd != PanelEnd::kPlain;
  const bool y_bf16 = kEnd == PanelEnd::kGateUpQuick || args.y_dtype == DType::kBF16;
  const EndKind kind = args.end;
  const auto gated_one = [&](float gate, float up) {
    if (kind == EndKind::kClampedSwiGlu) {
      return y_bf16 ? clamped_swiglu_quickly(gate, up, args.clamp) : clamped_swiglu_exactly(gate, up, args.clamp);
    }
    return y_bf16 ? gate * sigmoid_quickly(activation_of(kind, gate)) * up : gated_one_exactly(kind, gate, up);
  };
  // With gates two lanes have neighbouring outputs of the same two rows. Each stores both outputs of one of the rows.
  const int odd = output % 2;
  const int column = kGateUp ? panel * 32 + output - odd : panel * static_cast<int>(kPanelRows) + 2 * output;
  const bool exists = column < args.outputs;
  // The bias of the lane's first and second weight row.
  const bool biased = args.bias != nullptr;
  float bias[2] = {};
  if (biased && exists) {
    const float* own = args.bias + static_cast<int64_t>(tile.expert) * args.n + (kGateUp ? column + odd : column);
    bias[0] = own[0];
    bias[1] = own[kGateUp ? args.outputs : 1];
  }
  const auto store = [&](int r, float2 v) {
    if (r >= tile.rows || !exists) return;
    const int grouped = tile.row + r;
    const int row = args.rows == GroupedRows::kIn ? grouped : entry_of(args, tile.expert, grouped);
    store2(args.y, y_bf16, static_cast<int64_t>(row) * args.y_step + column, v);
  };
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (j * 8 >= tile.rows) break;  // the whole warp
    float d[4] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
    if (biased) d[0] += bias[0], d[1] += bias[0], d[2] += bias[1], d[3] += bias[1];
    const int r = j * 8 + first_row;
    if constexpr (kGateUp) {
      const float v[2] = {gated_one(d[0], d[2]), gated_one(d[1], d[3])};
      const float given = __shfl_xor_sync(0xffffffff, odd ? v[0] : v[1], 4);
      store(r + odd, odd ? float2{given, v[1]} : float2{v[0], given});
    } else {
      store(r, {d[0], d[2]});
      store(r + 1, {d[1], d[3]});
    }
  }
}

}  // namespace volley::ops
