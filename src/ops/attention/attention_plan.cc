#include "ops/attention/attention_plan.h"

#include <algorithm>

#include "base/math.h"
#include "ops/attention/attention_cpu.h"

namespace volley::ops {
namespace {

// If all KV heads have fewer blocks than this for so many threads, chunks become tasks of their own.
int64_t split_blocks(int threads) {
  return threads > 1 ? 2 * int64_t{threads} - 1 : 0;
}

struct Totals {
  int64_t query_rows = 0;  // over all heads
  int64_t macs = 0;
  int32_t max_chunks = 0;  // most chunks of a row
};

Totals add_up(const AttentionCall& call) {
  const Attention& args = call.args;
  Totals totals;
  int64_t positions = 0;
  for (int32_t s = 0; s < call.rows.n_segments; ++s) {
    const RowSegment& segment = call.rows.segments[s];
    const int32_t* begin = call.view.begin.as<int32_t>() + segment.row_begin;
    const int32_t* end = call.view.end.as<int32_t>() + segment.row_begin;
    for (int32_t i = 0; i < segment.rows; ++i) {
      positions += end[i] - begin[i];
      const int32_t chunks = (end[i] - 1) / kAttentionChunk - begin[i] / kAttentionChunk + 1;
      totals.max_chunks = std::max(totals.max_chunks, chunks);
    }
    totals.query_rows += int64_t{segment.rows} * args.heads;
  }
  totals.macs = positions * args.heads * (args.kv.head_dim + args.kv.value_dim());
  return totals;
}

// Long ranges are better divided into chunks, which reads K and V once, than into small blocks, each of which reads
// them again.
int64_t block_rows(const Totals& totals, int threads) {
  if (totals.max_chunks > 1) return kMaxBlockRows;
  return std::clamp<int64_t>(round_up(divide_up(totals.query_rows, threads), 6), kMinBlockRows, kMaxBlockRows);
}

void find_chunks(const AttentionCall& call, int32_t group, AttentionBlock& block) {
  const int32_t row = call.rows.segments[block.segment].row_begin;
  const int32_t first = row + block.begin / group;
  const int32_t last = row + (block.end - 1) / group;
  const int32_t* begin = call.view.begin.as<int32_t>();
  const int32_t* end = call.view.end.as<int32_t>();
  block.chunk_begin = *std::min_element(begin + first, begin + last + 1) / kAttentionChunk;
  block.chunk_end = (*std::max_element(end + first, end + last + 1) - 1) / kAttentionChunk + 1;
}

}  // namespace

int64_t attention_scratch_bytes(int64_t max_rows, int32_t heads, int32_t value_dim, int64_t max_positions,
                                int threads) {
  // A segment adds at most one block that is not full; it has at least one row.
  const int64_t blocks = max_rows * heads / kMinBlockRows + max_rows;
  const int64_t chunks = (max_positions + kAttentionChunk - 1) / kAttentionChunk;
  const int64_t split_rows = std::min({max_rows * heads, kMaxSplitRows, split_blocks(threads) * kMaxBlockRows});
  const int64_t partials = chunks > 1 ? split_rows * chunks : 0;
  const int64_t partial_bytes = partials * partial_floats(value_dim) * static_cast<int64_t>(sizeof(float));
  return arena_bytes(blocks * static_cast<int64_t>(sizeof(AttentionBlock))) + arena_bytes(partial_bytes);
}

int64_t made_tile_bytes(const KvLayer& kv) {
  const DType dtype = attention_dtype(kv.dtype);
  const bool widens = dtype != kv.dtype, makes_v = widens || kv.v_in_k > 0;
  const int64_t width = (widens ? kv.head_dim : 0) + (makes_v ? kv.value_dim() : 0);
  return kAttentionChunk * width * static_cast<int64_t>(dtype_size(dtype));
}

AttentionPlan plan_attention(const AttentionCall& call, int threads, Arena& scratch) {
  const Attention& args = call.args;
  const Rows& rows = call.rows;
  const Totals totals = add_up(call);
  const int32_t group = args.heads / args.kv.kv_heads;
  const int64_t rows_of_block = block_rows(totals, threads);
  int64_t n_blocks = 0;
  for (int32_t s = 0; s < rows.n_segments; ++s) {
    n_blocks += (int64_t{rows.segments[s].rows} * group + rows_of_block - 1) / rows_of_block;
  }
  AttentionPlan plan;
  plan.macs = totals.macs;
  const TensorView memory = scratch.take(DType::kU8, {n_blocks * static_cast<int64_t>(sizeof(AttentionBlock))});
  plan.blocks = {static_cast<AttentionBlock*>(memory.data), static_cast<size_t>(n_blocks)};
  plan.split = totals.max_chunks > 1 && n_blocks * args.kv.kv_heads <= split_blocks(threads) &&
               totals.query_rows <= kMaxSplitRows;
  size_t next = 0;
  for (int32_t s = 0; s < rows.n_segments; ++s) {
    const int64_t query_rows = int64_t{rows.segments[s].rows} * group;
    for (int64_t begin = 0; begin < query_rows; begin += rows_of_block) {
      AttentionBlock block;
      block.segment = s;
      block.begin = static_cast<int32_t>(begin);
      block.end = static_cast<int32_t>(std::min(query_rows, begin + rows_of_block));
      find_chunks(call, group, block);
      block.partial_offset = plan.partials;
      if (plan.split) {
        plan.partials += int64_t{block.end - block.begin} * (block.chunk_end - block.chunk_begin) * args.kv.kv_heads;
      }
      plan.blocks[next++] = block;
    }
  }
  return plan;
}

}  // namespace volley::ops
