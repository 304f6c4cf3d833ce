// Attention of a ragged batch of rows over paged K and V, for prefill, verification (causal) and drafting
// (bidirectional inside the block) alike: each row has its own range of visible cache positions (Rows, RowView).
//
// out = softmax(q K^T * scale) V per head, with V in K if KvLayer says so (latents). Scores, sums and outputs are
// accumulated in fp32; with bf16 KV the probabilities are rounded to bf16 before the product with V, and the sum that
// divides is the sum of the rounded ones, so that the weights of V add up to one. e4m3 KV is widened to bf16, and the
// scales of K and V multiply scores and outputs in fp32. With sinks (Xiao et al., 2023, arXiv:2309.17453; here learned,
// a logit for each head, not scaled) the sum has exp(sink) as one more term, whose V is zero; it is added at last.
//
// Batch invariance: a row's bits depend on its q, its range and the K and V in it; a position that it does not see
// cannot reach it, even if it holds NaN. Chunks of positions at absolute boundaries give partial results (maximum, sum,
// output) that are merged in ascending order; within a chunk, tiles, aligned alike, are read in ascending order. On the
// CPU a chunk is kAttentionChunk positions and its tiles kKvTile, all under the chunk's maximum; on CUDA the length of
// a row's chunks depends on the end of its range and the heads (attention_cuda_work.cuh), tiles are 64 positions, and
// the maximum runs along. Other rows, threads, page size and the division of work change none of that.
#pragma once

#include <string_view>

#include "device/arena.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

// CUDA's kernels for the same function. In each, a row's bits do not depend on the batch; wgmma and portable give the
// same bits.
enum class AttentionBackend {
  kAuto,      // the fastest one that the GPU and the shape allow
  kWgmma,     // the matrix unit of Hopper (sm_90a); bf16 or e4m3 KV with head_dim 64, 128 or 256; latents, in bf16,
              // of 512 and 256 with keys of 64 more
  kPortable,  // warps' matrix products, on GPUs from sm_80 on; the same shapes and head_dim 512, but no latents
  kPlain,     // any dtype and head_dim; slow
};

const char* attention_backend_name(AttentionBackend backend);  // "auto", "wgmma", "portable", "plain"

// kInvalidArgument lists the known names.
Result<AttentionBackend> parse_attention_backend(std::string_view name);

// The backend that runs for the requested one; on a GPU never kAuto. The CPU has only one, stays at kAuto and ignores
// `gpu`. kUnimplemented where the device or the shape of K and V does not allow it. v_in_k: of KvLayer.
Result<AttentionBackend> resolve_attention_backend(DeviceKind device, const GpuInfo& gpu, AttentionBackend asked,
                                                   DType kv, int32_t head_dim, int32_t v_in_k = 0);

inline constexpr int kAttentionChunk = 512;  // positions, on the CPU; a multiple of kKvTile

// The heads of layers that share a plan, and the kernel that runs it.
struct HeadShape {
  int32_t heads = 0;  // a multiple of kv_heads: heads are grouped in order (GQA)
  int32_t kv_heads = 0, head_dim = 0;
  DType dtype = DType::kBF16;
  AttentionBackend backend = AttentionBackend::kAuto;  // CUDA; a backend that resolve_attention_backend() allows
  // CUDA: attention uses as many blocks as so many multiprocessors hold, so that another kernel finds room beside them.
  // 0: all multiprocessors. No effect on results, nor on the plain kernel.
  int32_t multiprocessors = 0;
  int32_t v_in_k = 0;  // of KvLayer
  // CUDA: no work of a tile's rows is divided, because there are many tiles of about equal cost; and where a kernel for
  // that is built, a block reads K and V for twice as many rows. No effect on results.
  bool whole = false;

  int32_t value_dim() const { return v_in_k > 0 ? v_in_k : head_dim; }
  bool operator==(const HeadShape&) const = default;
};

// How the rows' work is divided among the multiprocessors, and room for partial results, in the arena passed to
// plan_attention(). Empty on the CPU, which divides inside attention(), and for CUDA's plain kernel.
struct AttentionWork {
  void* lists = nullptr;     // WorkLists of attention_cuda_work.cuh
  void* partials = nullptr;  // fp32
  int32_t blocks = 0;        // blocks of the grid
  int32_t tile_rows = 0;
  int32_t max_tiles = 0, max_items = 0, max_partials = 0;
  AttentionBackend backend = AttentionBackend::kAuto;  // CUDA: resolved
};

// Enqueue once for each pass and view, before the pass's layers; the arena's memory must stay until the last of them.
// On CUDA the host's part depends only on the bounds, so a captured graph serves other positions. There rows may lack
// cache_positions; with them, and with Attention::after_write, K and V before a segment's first position may be read
// while the segment's own are being written.
AttentionWork plan_attention(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                             Arena& scratch);

struct Attention {
  TensorView q;       // [rows, heads, head_dim], attention_dtype() of kv
  int32_t heads = 0;  // a multiple of kv.kv_heads
  float scale = 0;
  AttentionWork work;  // from plan_attention() for these rows and this view
  // The call before this one on the stream was write_qkv(). On CUDA the kernel may then start while write_qkv() runs,
  // and read older data: the plan, page table, segments, ranges, and the K and V that plan_attention() knew to be older
  // than the pass.
  bool after_write = false;
  KvLayer kv;
  TensorView sinks;  // [heads] fp32; or a null view
  TensorView out;    // [rows, heads * kv.value_dim()], dtype of q
};

// view: the cache group of args.kv. On the CPU, scratch memory is taken and given back. CUDA takes none: its scratch is
// in the plan.
void attention(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch);

}  // namespace volley::ops
