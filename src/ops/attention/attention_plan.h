// How the work of a CPU attention call is divided. Arithmetic only. The division changes no result, because chunks are
// at fixed absolute positions and query rows do not depend on one another.
#pragma once

#include <cstdint>
#include <span>

#include "ops/attention/attention.h"

namespace volley::ops {

// The arguments of a call.
struct AttentionCall {
  const Rows& rows;
  const RowView& view;
  const Attention& args;
};

// Some query rows of one segment, the same for every KV head: with g heads to a KV head, query row i of the segment is
// head i % g of its row i / g.
struct AttentionBlock {
  int32_t segment = 0;
  int32_t begin = 0, end = 0;              // query rows of one KV head in the segment
  int32_t chunk_begin = 0, chunk_end = 0;  // chunks that any of these rows sees
  int64_t partial_offset = 0;              // split: first of its partial results in the scratch, for KV head 0
};

struct AttentionPlan {
  std::span<AttentionBlock> blocks;  // in the arena
  bool split = false;                // every (block, KV head, chunk) is a task of its own, and a second pass merges
  int64_t partials = 0;              // split: number of partial results
  int64_t macs = 0;                  // multiply-adds of both products, roughly
};

// Query rows of a block. At 48 rows of 64 elements a chunk's K and V (128 KB in bf16) are read from the outer cache
// once for enough arithmetic to hide it, and the running results stay in the inner one.
inline constexpr int kMaxBlockRows = 48;
inline constexpr int kMinBlockRows = 12;

// A split keeps a partial result for each query row and chunk; above this many query rows there are enough blocks to
// keep any machine's threads busy without a split.
inline constexpr int64_t kMaxSplitRows = 2048;

// The most bytes of scratch that a call takes for max_rows rows of sequences of up to max_positions.
int64_t attention_scratch_bytes(int64_t max_rows, int32_t heads, int32_t value_dim, int64_t max_positions, int threads);

// In addition, for each thread: the K and V of a chunk that are made from the cache's, which are codes or V within K. 0
// if none are.
int64_t made_tile_bytes(const KvLayer& kv);

// REQUIRES: args checked.
AttentionPlan plan_attention(const AttentionCall& call, int threads, Arena& scratch);

}  // namespace volley::ops
