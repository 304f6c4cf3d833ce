// Chooses the tile kernel for the GPU, and has the kernel that merges the portable kernel's partial results. (The one
// for sm_90 merges its own.)
#include <algorithm>
#include <bit>
#include <numbers>
#include <string>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_merge_cuda.cuh"

namespace volley::ops {
namespace {

constexpr int kMergeWarps = 4;

template <int kHeadDim_>
struct MergeShape {
  static constexpr int kHeadDim = kHeadDim_;
};

// A warp a unit (TilePartials) of a split tile.
template <typename Shape>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ TilesArgs args, const SplitTile* splits) {
  constexpr int kUnits = kTileRows / 16 * kRowUnits<Shape>;
  cuda::launch_dependents();
  const int lane = threadIdx.x % 32;
  const int tasks = args.counts->splits * args.kv_heads * kUnits;
  cuda::wait_for_predecessors();  // partial results come from there; the lists are older
  const int first_task = static_cast<int>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  for (int task = first_task; task < tasks; task += static_cast<int>(gridDim.x) * kMergeWarps) {
    const int unit = task % kUnits, tile_and_head = task / kUnits, kv_head = tile_and_head % args.kv_heads;
    const SplitTile tile = splits[tile_and_head / args.kv_heads];
    const int rows = unit / kRowUnits<Shape>;
    if (rows * 16 >= tile.count) continue;
    const TilePartials from = partials_of(args.partials, args.max_units, tile.partial, tile.partials, kv_head,
                                          args.kv_heads, Shape::kHeadDim);
    const float4* outputs = from.outputs + unit * tile.partials * 32 + lane;
    const float2* states = from.states + rows * tile.partials * 16 + lane / 4;
    UnitMerge<1> merged;
    float maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll 4
    for (int i = 0; i < tile.partials; ++i) {
      const float2 state[2] = {states[i * 16], states[i * 16 + 8]};
      const float sums[2] = {state[0].y, state[1].y};
      const MergeFactors factors[2] = {merge_maximum(maximum[0], state[0].x), merge_maximum(maximum[1], state[1].x)};
      merged.add({outputs[i * 32]}, sums, factors);
    }
    merged.maximum[0] = maximum[0], merged.maximum[1] = maximum[1];
    store_units<Shape>(args, tile, kv_head, unit, 1, unit + 1, merged);
  }
}

// Code for sm_90a runs only there; on other GPUs a program uses the portable kernel.
bool has_wgmma(const GpuInfo& gpu) {
#ifdef VOLLEY_CUDA_SM90A
  return gpu.is_hopper();
#else
  return false;
#endif
}

// Error texts about the requested backend.
Error not_built(AttentionBackend asked, const std::string& why) {
  return unimplemented("The attention backend \"" + std::string(attention_backend_name(asked)) + "\" " + why);
}

TilesArgs tiles_args(const Rows& rows, const RowView& view, const Attention& args, const WorkLists& lists) {
  TilesArgs a;
  a.q = static_cast<const __nv_bfloat16*>(args.q.data);
  a.out = static_cast<__nv_bfloat16*>(args.out.data);
  a.heads = args.heads;
  a.kv_heads = args.kv.kv_heads;
  a.units_of_item = Divisor(args.kv.kv_heads);
  a.group = Divisor(args.heads / args.kv.kv_heads);
  a.scale_log2 = args.scale * std::numbers::log2e_v<float> * args.kv.k_scale;
  a.v_scale = args.kv.v_scale;
  a.sinks = args.sinks.data == nullptr ? nullptr : args.sinks.as<float>();
  a.visible_begin = view.begin.as<int32_t>();
  a.visible_end = view.end.as<int32_t>();
  a.pages = SlotPages::of(view);
  a.page_size = Divisor(args.kv.page_size);
  a.long_chunks = has_long_chunks(args.heads, args.kv.v_in_k);
  a.shared_by_tiles = int64_t{rows.max_segment_rows} * a.group.by > kTileRows;
  a.kv = reinterpret_cast<const uint8_t*>(args.kv.base);
  a.page_stride = args.kv.page_stride;
  a.head_bytes = kv_head_bytes(args.kv.page_size, args.kv.head_dim, args.kv.dtype);
  a.counts = lists.counts;
  a.items = lists.items;
  a.max_items = args.work.max_items;
  a.progress = lists.progress;
  a.partials = static_cast<float*>(args.work.partials);
  a.max_units = int64_t{args.work.max_partials} * args.kv.kv_heads;
  a.folds = reinterpret_cast<float4*>(a.partials + partial_floats(args.work, args.kv.kv_heads, args.kv.value_dim()));
  return a;
}

Result<AttentionBackend> resolve_latents(const GpuInfo& gpu, AttentionBackend asked, DType kv, int32_t head_dim,
                                         int32_t v_in_k) {
  const bool fits = attention_latent_fits(kv, head_dim, v_in_k);
  if (asked == AttentionBackend::kPlain) return asked;
  if (asked == AttentionBackend::kPortable) return not_built(asked, "is not built for latents: use auto or plain.");
  if (fits && has_wgmma(gpu)) return AttentionBackend::kWgmma;
  if (asked == AttentionBackend::kAuto) return AttentionBackend::kPlain;
  return not_built(asked, fits ? "needs a Hopper GPU and its machine code: use auto or plain."
                               : "is built for bfloat16 latents of 256 or 512 and keys of 64 more: use auto or plain.");
}

template <int kHeadDim>
void merge_partials(Stream& stream, const AttentionWork& work, const TilesArgs& args, const SplitTile* splits) {
  using Shape = MergeShape<kHeadDim>;
  const int64_t tasks =
      int64_t{std::min(work.max_partials / 2, work.max_tiles)} * args.kv_heads * (kTileRows / 16) * kRowUnits<Shape>;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>((tasks + kMergeWarps - 1) / kMergeWarps, 2048)));
  how.block = dim3(kMergeWarps * 32);
  how.early = true;
  cuda::launch(merge_kernel<Shape>, how, stream, args, splits);
}

}  // namespace

Result<AttentionBackend> resolve_attention_backend_cuda(const GpuInfo& gpu, AttentionBackend asked, DType kv,
                                                        int32_t head_dim, int32_t v_in_k) {
  if (v_in_k > 0) return resolve_latents(gpu, asked, kv, head_dim, v_in_k);
  const bool tiles = kv_is_swizzled(kv, head_dim) && std::has_single_bit(static_cast<uint32_t>(head_dim));
  const bool narrow = head_dim <= kMaxHopperHeadDim;
  switch (asked) {
    case AttentionBackend::kPlain:
      return asked;
    case AttentionBackend::kAuto:
      if (!tiles) return AttentionBackend::kPlain;
      if (has_wgmma(gpu) && narrow) return AttentionBackend::kWgmma;
      return attention_portable_fits(gpu, head_dim) ? AttentionBackend::kPortable : AttentionBackend::kPlain;
    case AttentionBackend::kWgmma:
      if (!has_wgmma(gpu)) return not_built(asked, "needs a Hopper GPU and its machine code: use auto or portable.");
      if (tiles && !narrow) {
        return not_built(asked, "is not built for heads of " + std::to_string(head_dim) + ": use auto or portable.");
      }
      break;
    case AttentionBackend::kPortable:
      if (tiles && !attention_portable_fits(gpu, head_dim)) {
        return not_built(asked, "needs more shared memory for heads of " + std::to_string(head_dim) +
                                    " than this GPU has: use auto or plain.");
      }
      break;
  }
  if (tiles) return asked;
  return not_built(asked,
                   "is built for a bfloat16 or FP8 KV cache and heads of 64, 128, 256 or 512, but this model has " +
                       std::string(dtype_name(kv)) + " and " + std::to_string(head_dim) + ": use auto or plain.");
}

void attention_tiles_cuda(Stream& stream, const Rows& rows, const RowView& view, const Attention& args) {
  VOLLEY_CHECK_MSG(args.work.lists != nullptr, "attention: no plan_attention() for these rows");
  const WorkLists lists = work_lists(args.work, args.kv.kv_heads);
  const TilesArgs tiles = tiles_args(rows, view, args, lists);
  const bool codes = args.kv.dtype == DType::kF8E4M3;
  if (args.work.backend == AttentionBackend::kWgmma) {
    if (args.kv.v_in_k > 0) {
      return attention_latent_tiles(stream, args.kv.head_dim, args.work.blocks, args.after_write, tiles);
    }
    const auto kernel = args.work.tile_rows > kTileRows ? attention_hopper_wide_tiles
                        : codes                         ? attention_hopper_code_tiles
                                                        : attention_hopper_tiles;
    return kernel(stream, args.kv.head_dim, args.work.blocks, args.after_write, tiles);
  }
  const auto kernel = codes ? attention_portable_code_tiles : attention_portable_tiles;
  kernel(stream, args.kv.head_dim, args.work.blocks, args.after_write, tiles);
  if (args.work.max_partials == 0) return;
  with_head_dim(args.kv.head_dim,
                [&](auto dim) { merge_partials<decltype(dim)::value>(stream, args.work, tiles, lists.splits); });
}

}  // namespace volley::ops
