// Shared by the tile kernels of attention: a lane's rows, from scores to results, in the layout in which both matrix
// units leave sums (warp_products.cuh). Shape defines kHeadDim; kHalves, the number of warp sets that hold different
// outputs of the same rows; kOutputs, the matrices of 8 outputs that a warp holds; kGroupBytes, 8 positions of K or V.
// For latents kHeadDim is V's.
#pragma once

#include "ops/attention/attention_cuda_work.cuh"
#include "ops/attention/attention_state_cuda.cuh"
#include "ops/paged_kv/cuda_page.cuh"

namespace volley::ops {

// Division of small numbers by one that is known before the kernel starts.
struct Divisor {
  uint32_t by, inverse;  // inverse: 2^32 / by, rounded up; by > 1
  explicit Divisor(int by) : by(by), inverse(static_cast<uint32_t>(((uint64_t{1} << 32) + by - 1) / by)) {}
  Divisor() = default;
  // REQUIRES: 0 <= x, x * by < 2^32.
  __device__ int divide(int x) const {
    return by == 1 ? x : static_cast<int>(__umulhi(static_cast<uint32_t>(x), inverse));
  }
  __device__ int remainder(int x) const { return x - divide(x) * static_cast<int>(by); }
};

struct TilesArgs {
  const __nv_bfloat16* q;
  __nv_bfloat16* out;
  int heads, kv_heads;
  Divisor units_of_item;  // by kv_heads
  Divisor group;
  float scale_log2;    // scale of the scores, including K's own
  float v_scale;       // scale of the outputs
  const float* sinks;  // [heads]; or null
  const int32_t *visible_begin, *visible_end;
  SlotPages pages;
  Divisor page_size;
  bool long_chunks;      // of chunk_shift()
  bool shared_by_tiles;  // several tiles of rows may read the same K and V
  const uint8_t* kv;
  int64_t page_stride, head_bytes;  // head_bytes: K of a head in a page
  WorkCounts* counts;
  const WorkItem* items;
  int max_items;
  TileProgress* progress;  // WorkLists' progress
  float* partials;
  int64_t max_units;
  float4* folds;  // latents: what a block has merged, [blocks][kOutputs][threads that compute]
};

constexpr int kScoreTiles = kTilePositions / 8;

// The ranges of a lane's two rows.
struct RowRanges {
  int32_t begin[2], end[2];
};

// A lane's share of 16 query rows: rows lane / 4 and lane / 4 + 8.
template <typename Shape>
struct RowState {
  float outputs[Shape::kOutputs][4];                           // the chunk's outputs, not divided by the sum
  float maximum[2], sum[2], merged_maximum[2], merged_sum[2];  // sum: over this lane's columns
  RowRanges visible;

  __device__ void clear_chunk() {
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; ++j) outputs[j][0] = outputs[j][1] = outputs[j][2] = outputs[j][3] = 0.0f;
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }
  __device__ void clear_merged() {
    merged_maximum[0] = merged_maximum[1] = -INFINITY;
    merged_sum[0] = merged_sum[1] = 0.0f;
  }
  __device__ void close_chunk() {
#pragma unroll
    for (float& s : sum) {
      s += __shfl_xor_sync(0xffffffff, s, 1);
      s += __shfl_xor_sync(0xffffffff, s, 2);
    }
  }
  __device__ float4 output(int j) const {
    return {outputs[j][0], outputs[j][1], outputs[j][2], outputs[j][3]};
  }
  // The part of merge_chunk() for the first chunk.
  __device__ void begin_merging() {
#pragma unroll
    for (int i = 0; i < 2; ++i) merged_maximum[i] = maximum[i], merged_sum[i] = sum[i];
  }
  // before(j): the merged outputs j of the chunks before this one, zeros if there are none. Afterwards `outputs` holds
  // the merged ones.
  template <typename Before>
  __device__ void merge_chunk(const Before& before) {
    MergeFactors factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factors[i] = merge_maximum(merged_maximum[i], maximum[i]);
      merged_sum[i] = merge(merged_sum[i], sum[i], factors[i]);
    }
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; ++j) {
      const float4 old = before(j);
      outputs[j][0] = merge(old.x, outputs[j][0], factors[0]);
      outputs[j][1] = merge(old.y, outputs[j][1], factors[0]);
      outputs[j][2] = merge(old.z, outputs[j][2], factors[1]);
      outputs[j][3] = merge(old.w, outputs[j][3], factors[1]);
    }
  }
};

// Hides the scores of positions from `position` on that a row does not see.
template <typename State>
__device__ __forceinline__ void hide_scores(float (&s)[kScoreTiles][4], const State& state, int32_t position) {
  const int32_t column = position + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t p = column + j * 8 + e % 2;
      if (p < state.visible.begin[e / 2] || p >= state.visible.end[e / 2]) s[j][e] = -INFINITY;
    }
  }
}

// Scores to probabilities under the running maximum of the chunk, packed as the A side of the next product. `factor` is
// the factor to apply to the outputs so far.
template <typename State>
__device__ __forceinline__ void update_probabilities(const float (&s)[kScoreTiles][4], float scale_log2, State& state,
                                                     uint32_t (&p)[kScoreTiles][2], float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float highs[4];  // several chains of maxima and sums, because a warp has to wait for each link
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
      const float high = fmaxf(s[j][2 * i], s[j][2 * i + 1]);
      highs[j % 4] = j < 4 ? high : fmaxf(highs[j % 4], high);
    }
    float highest = fmaxf(fmaxf(highs[0], highs[1]), fmaxf(highs[2], highs[3]));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
    const float before = state.maximum[i];
    state.maximum[i] = fmaxf(before, highest * scale_log2);
    const float reference = reference_of(state.maximum[i]);
    factor[i] = exp2_quick(before - reference);
    float sums[4];
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
      p[j][i] = pack_bf16(exp2_quick(fmaf(s[j][2 * i], scale_log2, -reference)),
                          exp2_quick(fmaf(s[j][2 * i + 1], scale_log2, -reference)));
      const float pair = low_bf16(p[j][i]) + high_bf16(p[j][i]);
      sums[j % 4] = j < 4 ? pair : sums[j % 4] + pair;
    }
    state.sum[i] = fmaf(state.sum[i], factor[i], (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

template <typename Shape>
__device__ __forceinline__ void scale_outputs(const float (&factor)[2], RowState<Shape>& state) {
  if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < Shape::kOutputs; ++j) {
    state.outputs[j][0] *= factor[0], state.outputs[j][1] *= factor[0];
    state.outputs[j][2] *= factor[1], state.outputs[j][3] *= factor[1];
  }
}

// Probabilities as the left side of products.
struct Probabilities {
  const uint32_t (&p)[kScoreTiles][2];
  __device__ void operator()(int step, uint32_t (&a)[4]) const {
    a[0] = p[2 * step][0], a[1] = p[2 * step][1], a[2] = p[2 * step + 1][0], a[3] = p[2 * step + 1][1];
  }
};

template <typename Shape>
__device__ uint32_t v_row(uint32_t v, int half) {
  const int lane = threadIdx.x % 32;
  return v + lane / 8 % 2 * Shape::kGroupBytes + half * Shape::kOutputs * 128 + lane % 8 * 128;
}
template <typename Shape>
__device__ uint32_t v_address(uint32_t row, int step, int output) {
  const int lane = threadIdx.x % 32, piece = output + lane / 16;
  return row + step * 2 * Shape::kGroupBytes + piece / 8 * 1024 + ((piece % 8) ^ (lane % 8)) * 16;
}

// Adds P V where V holds an infinity or NaN at a position that some rows see and others do not: zero times that would
// be NaN. Each row gets the product with its own V, in which the positions that it does not see are zero. left(step, a)
// is the left side of 16 positions.
template <typename Shape, typename Left>
__device__ __forceinline__ void multiply_seen_values(const Left& left, uint32_t v, int half, int32_t position,
                                                     RowState<Shape>& state) {
  const int lane = threadIdx.x % 32;
  const uint32_t base = v_row<Shape>(v, half);
#pragma unroll 1
  for (int row = 0; row < 16; ++row) {
    const int32_t begin =
        __shfl_sync(0xffffffff, row < 8 ? state.visible.begin[0] : state.visible.begin[1], row % 8 * 4);
    const int32_t end = __shfl_sync(0xffffffff, row < 8 ? state.visible.end[0] : state.visible.end[1], row % 8 * 4);
    const auto seen = [&](uint32_t pair, int at) {
      const int32_t first = position + at + lane % 4 * 2;
      return pair & ((first >= begin && first < end ? 0xffffu : 0u) |
                     (first + 1 >= begin && first + 1 < end ? 0xffff0000u : 0u));
    };
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; j += 2) {
      float d[2][4];
#pragma unroll
      for (int e = 0; e < 4; ++e) d[0][e] = state.outputs[j][e], d[1][e] = state.outputs[j + 1][e];
#pragma unroll
      for (int step = 0; step < kTilePositions / 16; ++step) {
        uint32_t a[4], b[4];
        left(step, a);
        load_matrices_transposed(b, v_address<Shape>(base, step, j));
#pragma unroll
        for (int e = 0; e < 4; ++e) b[e] = seen(b[e], step * 16 + e % 2 * 8);
        multiply16(d[0], a, b[0], b[1]);
        multiply16(d[1], a, b[2], b[3]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool mine = lane / 4 + e / 2 * 8 == row;
        state.outputs[j][e] = mine ? d[0][e] : state.outputs[j][e];
        state.outputs[j + 1][e] = mine ? d[1][e] : state.outputs[j + 1][e];
      }
    }
  }
}

// Units of 8 columns that the same 16 rows have.
template <typename Shape>
inline constexpr int kRowUnits = Shape::kHeadDim / kUnitColumns;

// A warp's share of the partial result `index` of a split tile. The maximum and sum are the merged ones.
template <typename Shape>
__device__ __forceinline__ void store_partial(const TilesArgs& args, const WorkItem& item, int kv_head, int index,
                                              const RowState<Shape>& state) {
  const TilePartials to = partials_of(args.partials, args.max_units, item.tile_partial, item.tile_partials, kv_head,
                                      args.kv_heads, Shape::kHeadDim);
  const int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
  if (half == 0 && lane % 4 == 0) {
    float2* states = to.states + (rows * item.tile_partials + index) * 16 + lane / 4;
    states[0] = {state.merged_maximum[0], state.merged_sum[0]};
    states[8] = {state.merged_maximum[1], state.merged_sum[1]};
  }
  float4* outputs =
      to.outputs + ((rows * kRowUnits<Shape> + half * Shape::kOutputs) * item.tile_partials + index) * 32 + lane;
#pragma unroll
  for (int j = 0; j < Shape::kOutputs; ++j, outputs += item.tile_partials * 32) *outputs = state.output(j);
}

// The final factor on the merged outputs of a head's row.
__device__ inline float output_factor(const TilesArgs& args, int head, float maximum, float sum) {
  return args.v_scale * inverse_sum(args.sinks, head, maximum, sum);
}

// The head of a segment's query row, and where its outputs go.
__device__ inline int head_of(const TilesArgs& args, int query, int kv_head) {
  return kv_head * static_cast<int>(args.group.by) + args.group.remainder(query);
}
__device__ inline __nv_bfloat16* result_of(const TilesArgs& args, int first_row, int query, int kv_head, int head_dim) {
  const int64_t row = first_row + args.group.divide(query);
  return args.out + (row * args.heads + head_of(args, query, kv_head)) * head_dim;
}

template <typename Shape>
__device__ void store_result(const TilesArgs& args, const WorkItem& item, int kv_head, int row, int half,
                             const RowState<Shape>& state) {
  const int column = half * Shape::kOutputs * 8 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (state.visible.end[i] == 0) continue;  // the row does not exist, or has chunks of another length
    const int r = row + 8 * i;
    const float factor =
        output_factor(args, head_of(args, item.first + r, kv_head), state.merged_maximum[i], state.merged_sum[i]);
    __nv_bfloat16* to = result_of(args, item.row, item.first + r, kv_head, Shape::kHeadDim) + column;
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; ++j) {
      *reinterpret_cast<uint32_t*>(to + j * 8) =
          pack_bf16(finish(state.outputs[j][2 * i], factor), finish(state.outputs[j][2 * i + 1], factor));
    }
  }
}

// The ranges of rows row and row + 8 of a tile. A row outside the item sees nothing.
__device__ inline RowRanges load_ranges(const TilesArgs& args, const WorkItem& item, int row) {
  RowRanges ranges;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = row + 8 * i;
    ranges.begin[i] = ranges.end[i] = 0;
    if (r >= item.count) continue;
    const int batch_row = item.row + args.group.divide(item.first + r);
    ranges.begin[i] = args.visible_begin[batch_row];
    ranges.end[i] = args.visible_end[batch_row];
    if (item.mixed && chunk_shift(ranges.end[i], args.long_chunks) != item.shift) ranges.begin[i] = ranges.end[i] = 0;
  }
  return ranges;
}

}  // namespace volley::ops
