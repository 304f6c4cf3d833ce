// Builds the per-row arrays of a ragged batch, in scratch memory.
#pragma once

#include <vector>

#include "base/ids.h"
#include "model/decoder_layers.h"

namespace volley::spec {

// Rows of one slot: consecutive positions from `start`.
struct RowRun {
  int32_t slot = 0;
  SequenceIndex start;  // of the first row
  int32_t rows = 0;
};

enum class Mask {
  kCausal,         // a row sees everything up to itself
  kBidirectional,  // a row sees everything up to the end of its run
};

struct Visibility {
  Mask mask = Mask::kCausal;         // of full-attention layers
  Mask window_mask = Mask::kCausal;  // of sliding-window layers
  int32_t layer_window = 0;          // > 0: their window: |query - key| < window; fills window_begin and window_end
  int32_t context_window = 0;  // > 0: of the positions before the run only the last that many are seen (--draft-window)
};

// What the layers of a drafter see. REQUIRES: layers of one kind agree (config.json has one window and one flag for
// all).
Visibility block_visibility(const model::DecoderSpec& spec, int32_t context_window);

// For text the three positions of a token are one number; another kind of input changes these.
constexpr RopePosition rope_position(SequenceIndex index) {
  return RopePosition(index.value);
}
constexpr CachePosition cache_position(SequenceIndex index) {
  return CachePosition(index.value);
}

// Positions, visibility and segments of the runs, flattened in order. token_ids is left null. `segments` keeps what the
// batch's span points to and must outlive it.
model::RowBatch build_rows(std::span<const RowRun> runs, const Visibility& visibility, TensorView page_table,
                           std::vector<ops::RowSegment>& segments, Arena& scratch);

}  // namespace volley::spec
