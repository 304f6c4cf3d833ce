// Logits are computed and consumed some segments at a time: rows × vocabulary floats for a whole batch are many (32
// blocks of 16 over 152k tokens: 311 MB), and from some hundred rows on the head's weights are read once per chunk at
// no cost, because arithmetic bounds it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace volley::decode {

// Consecutive segments whose rows of logits are made together.
struct LogitChunk {
  int32_t segment_begin = 0, segment_end = 0;
  int32_t row_begin = 0, rows = 0;  // of all the segments' rows, in order
};

// Cuts segments of counts[i] rows into chunks of at most max_rows. Chunks without rows are left out. REQUIRES: no count
// is larger than max_rows.
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
