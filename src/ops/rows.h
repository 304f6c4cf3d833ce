// The rows of one pass of a network: their slots, their positions, and the positions that layers see. Every operation
// that works on rows of several sequences takes this one description of them.
//
// Plain data, cheap to copy. All arrays are in the memory of the stream's device and belong to the maker of the pass
// (decode::take_pass() takes them from scratch memory; fill_draft_rows() and fill_verify_rows() fill them); all other
// code only reads. On CUDA the host knows only the counts and bounds.
#pragma once

#include <cstdint>

#include "device/tensor.h"

namespace volley::ops {

// Consecutive rows of a ragged batch that belong to one slot; sequences of different slots never share a row.
struct RowSegment {
  int32_t row_begin = 0;
  int32_t rows = 0;
  int32_t slot = 0;  // row of the page tables
};

// The cache positions that the layers of one cache group see.
struct RowView {
  TensorView begin, end;  // [rows] int32: cache positions [begin, end), not empty; null views if no layer reads them
  TensorView page_table;  // [slots, max pages] int32
};

// A view for each cache group.
inline constexpr int kWholeView = 0;   // layers that keep all positions
inline constexpr int kWindowView = 1;  // sliding-window layers
inline constexpr int kMaxViews = 2;

struct Rows {
  int32_t rows = 0;
  TensorView token_ids;        // [rows] int32, and so are the next three
  TensorView slots;            // row of the page tables
  TensorView rope_positions;   // row of the tables of rotary angles: the rotary position, unless rope_axes are there
  TensorView cache_positions;  // where K and V go: consecutive and ascending within a segment
  // [rows, 3] int32: rotary positions in time, height and width (ops/rope_angles). The pass then has tables of its own
  // rows' angles, and rope_positions are the rows' numbers. A null view: all three are one, as for text.
  TensorView rope_axes;

  RowSegment* segments = nullptr;  // [n_segments]; entries may have no rows
  int32_t n_segments = 0;          // a bound on CUDA
  int32_t max_segment_rows = 0;    // the most rows of any segment
  int32_t max_positions = 0;       // no row sees a position from this one on

  RowView views[kMaxViews];
};

}  // namespace volley::ops
