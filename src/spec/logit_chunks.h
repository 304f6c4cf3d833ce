// Logits are computed and consumed a few blocks at a time: rows × vocabulary floats for a whole batch would not fit any
// cache (32 blocks of 16 over 152k tokens are 311 MB), and from some hundred rows on the head's weights are read once
// per chunk at no cost, because arithmetic bounds it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace volley::spec {

inline constexpr int32_t kLogitRows = 128;

// Rows of logits that one chunk may need: at least one whole block.
inline int32_t logit_chunk_rows(int32_t block_size) {
  return std::max(kLogitRows, block_size);
}

// Calls f(first, last, rows) for consecutive groups of `counts` whose sum is at most max_rows. REQUIRES: no count is
// larger.
template <typename F>
void for_logit_chunks(std::span<const int32_t> counts, int32_t max_rows, F&& f) {
  size_t first = 0;
  while (first < counts.size()) {
    size_t last = first;
    int32_t rows = 0;
    while (last < counts.size() && rows + counts[last] <= max_rows) rows += counts[last++];
    f(first, last, rows);
    first = last;
  }
}

}  // namespace volley::spec
