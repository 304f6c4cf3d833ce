// Merging the partial results of a tile that was cut: the same arithmetic and order wherever it is done.
#pragma once

#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {

// A warp's state for kUnits units (TilePartials) of the same rows, merged partial result by partial result. A lane
// holds two columns of rows lane / 4 and lane / 4 + 8 of those 16.
template <int kUnits>
struct UnitMerge {
  float4 outputs[kUnits] = {};
  float sum[2] = {}, maximum[2] = {};  // maximum: to be set after the last

  // Adds the next partial result: this lane's outputs, and for both rows the sum and merge_maximum()'s factors.
  __device__ void add(const float4 (&added)[kUnits], const float (&added_sum)[2], const MergeFactors (&factors)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] = merge(sum[row], added_sum[row], factors[row]);
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      outputs[k].x = merge(outputs[k].x, added[k].x, factors[0]);
      outputs[k].y = merge(outputs[k].y, added[k].y, factors[0]);
      outputs[k].z = merge(outputs[k].z, added[k].z, factors[1]);
      outputs[k].w = merge(outputs[k].w, added[k].w, factors[1]);
    }
  }
};

// Which rows of a split tile have a result: existing rows, and in a mixed tile only those with its chunk length. Tile:
// WorkItem or SplitTile.
template <typename Tile>
__device__ bool has_result(const TilesArgs& args, const Tile& tile, int row) {
  if (row >= tile.count) return false;
  return !tile.mixed ||
         chunk_shift(args.visible_end[tile.row + args.group.divide(tile.first + row)], args.long_chunks) == tile.shift;
}

// Stores units unit, unit + stride, … below `until`, counted in the whole tile.
template <typename Shape, typename Tile, int kUnits>
__device__ void store_units(const TilesArgs& args, const Tile& tile, int kv_head, int unit, int stride, int until,
                            const UnitMerge<kUnits>& merged) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = unit / kRowUnits<Shape> * 16 + lane / 4 + 8 * i;
    if (!has_result(args, tile, row)) continue;
    const float factor =
        output_factor(args, head_of(args, tile.first + row, kv_head), merged.maximum[i], merged.sum[i]);
    __nv_bfloat16* to = result_of(args, tile.row, tile.first + row, kv_head, Shape::kHeadDim) +
                        unit % kRowUnits<Shape> * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const float4 v = merged.outputs[k];
      if (unit + k * stride >= until) continue;
      *reinterpret_cast<uint32_t*>(to + k * stride * 8) =
          pack_bf16(finish(i == 0 ? v.x : v.z, factor), finish(i == 0 ? v.y : v.w, factor));
    }
  }
}

}  // namespace volley::ops
