#include "decode/logit_chunks.h"

#include <gtest/gtest.h>

namespace volley::decode {
namespace {

// Every row lands in exactly one chunk, in order. No chunk is larger than allowed, and none is empty.
TEST(LogitChunks, CoverAllRowsInOrder) {
  const std::vector<int32_t> counts = {0, 16, 0, 100, 12, 1, 127, 128, 0, 0, 5};
  int32_t next_row = 0, next_segment = 0;
  for (const LogitChunk& chunk : logit_chunks(counts, 128)) {
    EXPECT_GE(chunk.segment_begin, next_segment);
    EXPECT_EQ(chunk.row_begin, next_row);
    EXPECT_GT(chunk.rows, 0);
    EXPECT_LE(chunk.rows, 128);
    int32_t sum = 0;
    for (int32_t i = chunk.segment_begin; i < chunk.segment_end; ++i) sum += counts[i];
    EXPECT_EQ(sum, chunk.rows);
    next_row += chunk.rows;
    next_segment = chunk.segment_end;
  }
  EXPECT_EQ(next_row, 16 + 100 + 12 + 1 + 127 + 128 + 5);
}

TEST(LogitChunks, NothingMakesNone) {
  EXPECT_TRUE(logit_chunks({}, 8).empty());
  EXPECT_TRUE(logit_chunks(std::vector<int32_t>{0, 0}, 8).empty());
}

}  // namespace
}  // namespace volley::decode
