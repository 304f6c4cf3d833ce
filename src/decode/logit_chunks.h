// Logits are computed and consumed chunk by chunk, because those of a whole batch are large: 32 blocks of 16 over 152k
// tokens take 311 MB. From some hundred rows on arithmetic bounds the head, so reading its weights once per chunk costs
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace volley::decode {

// Consecutive segments whose logits are computed together.
struct LogitChunk {
  int32_t segment_begin = 0, segment_end = 0;
  int32_t row_begin = 0, rows = 0;  // counted over the rows of all segments
};

// Cuts segments of counts[i] rows into chunks of at most max_rows, and leaves out chunks without rows. REQUIRES: no
// count is larger than max_rows.
inline std::vector<LogitChunk> logit_chunks(std::span<const int32_t> counts, int32_t max_rows) {
  std::vector<LogitChunk> chunks;
  LogitChunk chunk;
  const auto close = [&] {
    if (chunk.rows > 0) chunks.push_back(chunk);
    chunk = {chunk.segment_end, chunk.segment_end, chunk.row_begin + chunk.rows, 0};
  };
  for (const int32_t count : counts) {
    if (chunk.rows + count > max_rows) close();
    ++chunk.segment_end;
    chunk.rows += count;
  }
  close();
  return chunks;
}

}  // namespace volley::decode
