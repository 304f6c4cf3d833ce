// Paged K and V: where they lie, and the fused write (per-head RMSNorm of q and k, RoPE, cast, store).
//
// A cache group is one buffer of pages; a page holds page_size token positions of every layer of the group. Position p
// of a sequence lies in page page_table[slot][p / page_size]. Inside a page each layer has its own block:
//   for each KV head: all of K, then all of V, unless V lies in K.
// The layout of K and V inside is private to the kernels of paged_kv and attention of a device (cpu_tile.h: tiles of
// kKvTile positions; cuda_page.cuh: swizzled rows); a page is copyable as bytes.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/rows.h"

namespace volley::ops {

// Positions of a tile. Attention reads K and V and updates its softmax tile by tile at multiples of this absolute
// position, so page_size must be a multiple of it and cannot change the result.
inline constexpr int kKvTile = 16;

// The widest heads, and the widest K and V of latent attention.
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kMaxLatentKey = 576, kMaxLatent = 512;

// One layer's part of the pages of a cache group.
struct KvLayer {
  std::byte* base = nullptr;  // page 0 of the group, at this layer's offset
  int64_t page_stride = 0;    // bytes from one page to the next
  int32_t page_size = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;        // a multiple of 16, at most kMaxHeadDim, or kMaxLatentKey with v_in_k
  DType dtype = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  // kF8E4M3: K and V are stored divided by these; larger values become the largest code.
  float k_scale = 1, v_scale = 1;
  // > 0: V is the first v_in_k elements of K and is not stored (ops/latent/latent.h). A multiple of 16, at most
  // kMaxLatent. REQUIRES: one KV head, and equal scales.
  int32_t v_in_k = 0;

  int32_t value_dim() const { return v_in_k > 0 ? v_in_k : head_dim; }
};

// The type of q and of attention's output: codes are multiplied in bf16, which holds each of them exactly.
constexpr DType attention_dtype(DType kv) {
  return kv == DType::kF8E4M3 ? DType::kBF16 : kv;
}

// Bytes of one layer's block in a page: 2 * kv_heads * page_size * head_dim * size of dtype; half of that where V lies
// in K.
int64_t kv_layer_bytes(int32_t page_size, int32_t kv_heads, int32_t head_dim, DType dtype, bool v_in_k = false);

// Cos and sin of the rotary embedding: [max positions, head_dim / 2] fp32 each; rotate-half layout (element i pairs
// with i + head_dim / 2). Scaling (linear, llama3, yarn) is already in the tables.
struct RopeTables {
  TensorView cos, sin;
};

// The input of a write, and its destination.
struct QkvWrite {
  TensorView qkv;  // [rows, source_heads() * source_dim()] fp32: q heads, k heads, v heads
                   // heads == 0: k and v alone, of each layer (the drafter's injection)
                   // Rows may be longer: dim(1) is how far apart they begin, and what follows is not looked at.
  int32_t heads = 0;
  // > 0: elements of a head of qkv and bias, an even number up to head_dim. Its halves begin the halves of a head of q,
  // K and V, whose rest is zero. REQUIRES: no norms.
  int32_t narrow_dim = 0;
  int32_t layers = 1;         // that get k and v of their own, one after the other; more than one with heads == 0 alone
  TensorView bias;            // bias of a row of qkv, fp32, added first; or a null view
  TensorView q_norm, k_norm;  // [head_dim] and [layers * head_dim] fp32, or null views: no per-head norm
  bool v_norm = false;        // RMSNorm of every head of v, without a weight
  bool v_from_k = false;      // qkv has no v heads: v is k with its bias, before k's norm
  float eps = 0;
  RopeTables rope;
  // Whether an earlier write on this stream had the same positions and slots, and a page table as old. CUDA then reads
  // them while the kernel that makes qkv still runs: a write lets no later kernel start before all older ones have
  // ended, so everything that the first write of the pass waited for is complete.
  bool rows_ready = false;
  KvLayer kv;        // the first layer; the others' blocks, of the same scales, follow it in the page
  TensorView q_out;  // [rows, heads, head_dim] bf16 or fp32; null view when heads == 0

  int32_t source_dim() const { return narrow_dim > 0 ? narrow_dim : kv.head_dim; }
  int32_t all_heads() const { return heads + layers * 2 * kv.kv_heads; }  // that are written
  int32_t source_heads() const { return heads + layers * (v_from_k ? 1 : 2) * kv.kv_heads; }
};

// Writes K (normed, rotated) and V (normed if args say so) of each row at its cache position, and q (normed, rotated)
// to q_out. A row's values depend only on the row. view: the cache group of kv; only its page table is read. The CPU
// reads the rows' segments and CUDA their slots; the other may be left out.
//
// CPU: when a position that starts a tile is written, the rest of that tile is cleared first, so that a former owner's
// values (even NaN) cannot reach any sum. CUDA: no other memory changes; attention reads no position that none of its
// rows sees. If rows share a position (padding, in the scrap page), the values of any of them remain. A position
// without a page, or a slot or RoPE position out of range, stops the kernel with a trap.
void write_qkv(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args);

}  // namespace volley::ops
