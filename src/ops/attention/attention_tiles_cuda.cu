// The tile kernel that suits the GPU, and the kernel that merges what that one could not.
#include <algorithm>
#include <numbers>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {
namespace {

constexpr int kMergeWarps = 4;

struct MergeArgs {
  const WorkCounts* counts;
  const SplitTile* splits;
  float* partials;
  int64_t max_units;
  int heads, kv_heads;
  Divisor group;
  __nv_bfloat16* out;
};

// A warp some outputs of a query row of a split tile, kEach a lane: its partial results in ascending order.
template <int kHeadDim, int kEach>
__global__ void __launch_bounds__(kMergeWarps * 32) merge_kernel(const __grid_constant__ MergeArgs args) {
  constexpr int kParts = kHeadDim / 32 / kEach;
  constexpr int kAhead = kEach > 2 ? 64 / kEach : 32;  // partial results on their way at a time
  cuda::launch_dependents();
  const int lane = threadIdx.x % 32;
  const int64_t units = static_cast<int64_t>(args.counts->splits) * args.kv_heads * kTileRows * kParts;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kMergeWarps;
  cuda::wait_for_predecessors();  // partial results come from there; the lists are older
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32; unit < units; unit += stride) {
    const int element = static_cast<int>(unit % kParts) * 32 * kEach + lane;
    const int row = static_cast<int>(unit / kParts % kTileRows);
    const auto tile_and_head = static_cast<int>(unit / (kParts * kTileRows));
    const int kv_head = tile_and_head % args.kv_heads;
    const SplitTile tile = args.splits[tile_and_head / args.kv_heads];
    if (row >= tile.count) continue;
    float merged[kEach] = {}, maximum = -INFINITY, sum = 0.0f;
    for (int first = 0; first < tile.partials; first += kAhead) {
      const int64_t from = static_cast<int64_t>(tile.partial + first) * args.kv_heads + kv_head;
      const int count = min(kAhead, tile.partials - first);
      float outputs[kAhead][kEach];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i >= count) continue;
        const Partials at = partials_of(args.partials, from + i * args.kv_heads, args.max_units, kHeadDim);
#pragma unroll
        for (int j = 0; j < kEach; ++j) outputs[i][j] = at.outputs[row * kHeadDim + element + 32 * j];
      }
      float2 state = {-INFINITY, 0.0f};  // of partial result `lane`
      if (lane < count) {
        state = partials_of(args.partials, from + lane * args.kv_heads, args.max_units, kHeadDim).states[row];
      }
      // Every lane finds the factors of its partial result: the maximum before it does not depend on any order.
      float highest = state.x;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffff, highest, d);
        if (lane >= d) highest = fmaxf(highest, other);
      }
      highest = fmaxf(highest, maximum);
      const float before = __shfl_up_sync(0xffffffff, highest, 1);
      float until = lane == 0 ? maximum : before;
      const MergeFactors mine = merge_maximum(until, state.x);
      maximum = __shfl_sync(0xffffffff, highest, 31);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const MergeFactors factors = {__shfl_sync(0xffffffff, mine.old, i), __shfl_sync(0xffffffff, mine.added, i)};
        const float added_sum = __shfl_sync(0xffffffff, state.y, i);
        if (i >= count) continue;
        sum = merge(sum, added_sum, factors);
#pragma unroll
        for (int j = 0; j < kEach; ++j) merged[j] = merge(merged[j], outputs[i][j], factors);
      }
    }
    const int query = tile.first + row;
    const int64_t at = static_cast<int64_t>(tile.row + args.group.divide(query)) * args.heads +
                       kv_head * args.group.by + args.group.remainder(query);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      args.out[at * kHeadDim + element + 32 * j] = __float2bfloat16_rn(finish(merged[j], inverse));
    }
  }
}

// Code for sm_90a runs there alone; a program without it has the portable kernel for all GPUs.
bool has_wgmma() {
#ifndef VOLLEY_CUDA_SM90A
  return false;
#endif
  int device = 0, major = 0;
  VOLLEY_CUDA_CHECK(cudaGetDevice(&device));
  VOLLEY_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9;
}

TilesArgs tiles_args(const Attention& args, const WorkLists& lists) {
  TilesArgs a;
  a.q = static_cast<const __nv_bfloat16*>(args.q.data);
  a.out = static_cast<__nv_bfloat16*>(args.out.data);
  a.heads = args.heads;
  a.kv_heads = args.kv.kv_heads;
  a.group = Divisor(args.heads / args.kv.kv_heads);
  a.scale_log2 = args.scale * std::numbers::log2e_v<float>;
  a.visible_begin = args.visible_begin.as<int32_t>();
  a.visible_end = args.visible_end.as<int32_t>();
  a.page_table = args.page_table.as<int32_t>();
  a.max_pages = static_cast<int>(args.page_table.dim(1));
  a.page_size = Divisor(args.kv.page_size);
  a.shared_by_tiles = int64_t{args.max_segment_rows} * a.group.by > kTileRows;
  a.kv = reinterpret_cast<const uint8_t*>(args.kv.base);
  a.page_stride = args.kv.page_stride;
  a.head_bytes = kv_head_bytes(args.kv.page_size, args.kv.head_dim, args.kv.dtype);
  a.counts = lists.counts;
  a.items = lists.items;
  a.max_items = args.work.max_items;
  a.partials = static_cast<float*>(args.work.partials);
  a.max_units = int64_t{args.work.max_partials} * args.kv.kv_heads;
  return a;
}

// A row's outputs are spread over several warps where there are few rows.
template <int kHeadDim>
void merge_partials(Stream& stream, const AttentionWork& work, const MergeArgs& args) {
  constexpr int64_t kManyRows = 2048;
  const int64_t rows = int64_t{std::min(work.max_partials / 2, work.max_tiles)} * args.kv_heads * kTileRows;
  const int64_t warps = rows > kManyRows ? rows : rows * (kHeadDim / 64);
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>((warps + kMergeWarps - 1) / kMergeWarps, 2048)));
  how.block = dim3(kMergeWarps * 32);
  how.early = true;
  if (rows > kManyRows) {
    cuda::launch(merge_kernel<kHeadDim, kHeadDim / 32>, how, stream, args);
  } else {
    cuda::launch(merge_kernel<kHeadDim, 2>, how, stream, args);
  }
}

void merge_partials(Stream& stream, const Attention& args, const WorkLists& lists, const TilesArgs& tiles) {
  const MergeArgs m = {lists.counts, lists.splits,   tiles.partials, tiles.max_units,
                       tiles.heads,  tiles.kv_heads, tiles.group,    tiles.out};
  switch (args.kv.head_dim) {
    case 64:
      return merge_partials<64>(stream, args.work, m);
    case 128:
      return merge_partials<128>(stream, args.work, m);
    default:
      return merge_partials<256>(stream, args.work, m);
  }
}

}  // namespace

void attention_tiles_cuda(Stream& stream, const Attention& args) {
  VOLLEY_CHECK_MSG(args.work.lists != nullptr, "attention: no plan_attention() for these rows");
  const WorkLists lists = work_lists(args.work);
  const TilesArgs tiles = tiles_args(args, lists);
  if (args.work.portable || !has_wgmma()) {
    attention_portable_tiles(stream, args.kv.head_dim, args.work.blocks, args.after_write, tiles);
  } else {
    attention_hopper_tiles(stream, args.kv.head_dim, args.work.blocks, args.after_write, tiles);
  }
  if (args.work.max_partials > 0) merge_partials(stream, args, lists, tiles);
}

}  // namespace volley::ops
