// The layout of a KV tile on the CPU: private to the kernels of paged_kv (which writes tiles) and attention (which
// reads them).
//
// A tile holds kKvTile = 16 positions of one KV head, laid out so that both products of attention are the same loop
// over full vectors: lanes are positions for q K^T, and elements of the head for P V.
//   fp32:  K [head_dim][16]           V [16][head_dim]
//   bf16:  K [head_dim / 2][16][2]    V [16 / 2][head_dim][2]
//   e4m3:  as bf16, a byte each
// The bf16 forms keep two neighbours of the summed index (head elements for K, positions for V) in one 32-bit word, as
// the bf16 dot product wants them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

inline int64_t kv_tile_bytes(const KvLayer& kv) {
  return int64_t{kKvTile} * kv.head_dim * static_cast<int64_t>(dtype_size(kv.dtype));
}

// Where the tiles of one head of a page begin: K tiles in the order of positions, V tiles right after them; if V lies
// in K, there are no V tiles.
struct HeadTiles {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
};

inline HeadTiles kv_head_tiles(const KvLayer& kv, int64_t page, int32_t head) {
  const int64_t half = kv.page_size / kKvTile * kv_tile_bytes(kv);
  std::byte* k = kv.base + page * kv.page_stride + int64_t{head} * 2 * half;
  return {k, kv.v_in_k > 0 ? nullptr : k + half};
}

}  // namespace volley::ops
