// Attention of a ragged batch of rows over paged K and V, for prefill, verification (causal) and drafting
// (bidirectional inside the block) alike: each row brings the range of cache positions that it sees.
//
// out = softmax(q K^T * scale) V per head. Scores, sums and outputs are accumulated in fp32; with bf16 KV the
// probabilities are rounded to bf16 before the product with V, and the sum that divides is the sum of the rounded ones,
// so that the weights of V add up to one.
//
// Batch invariance: a row's bits depend on its q, its range and the K and V in it; a position that it does not see
// cannot reach it, even if it holds NaN. Chunks of kAttentionChunk positions, aligned to absolute positions, give
// partial results (maximum, sum, output) that are merged in ascending order; within a chunk, tiles of kKvTile
// positions, aligned alike, are read in ascending order under the chunk's maximum. Neither other rows nor threads nor
// page size change any of that.
#pragma once

#include "device/arena.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

inline constexpr int kAttentionChunk = 512;  // positions; a multiple of kKvTile

struct Attention {
  TensorView q;       // [rows, heads, head_dim], dtype of kv
  int32_t heads = 0;  // a multiple of kv.kv_heads: heads are grouped in order (GQA)
  float scale = 0;
  TensorView visible_begin, visible_end;  // [rows] int32: cache positions [begin, end), not empty
  TensorView page_table;                  // [slots, max pages] int32
  const RowSegment* segments = nullptr;
  int32_t n_segments = 0;
  KvLayer kv;
  TensorView out;  // [rows, heads * head_dim], dtype of q
};

// Bytes of scratch that attention() takes at most for max_rows rows of sequences of up to max_positions, on any number
// of threads. It is given back before attention() returns.
int64_t attention_scratch_bytes(int64_t max_rows, int32_t heads, int32_t head_dim, int64_t max_positions);

void attention(Stream& stream, const Attention& args, Arena& scratch);

}  // namespace volley::ops
