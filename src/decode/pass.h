// Arrays of one pass over rows, taken from scratch memory.
#pragma once

#include <array>

#include "model/pass.h"
#include "ops/step/step.h"

namespace volley::decode {

// Bounds of a pass, known to the host.
struct PassShape {
  int32_t rows = 0;
  int32_t segments = 0;
  int32_t max_segment_rows = 0;
  int32_t choices = 0;
  int32_t max_positions = 0;  // longest possible sequence
  bool rope_axes = false;     // rows bring their rotary positions on three axes
};

struct PassMemory {
  ops::Rows rows;
  ops::PassChoices choices;
};

using PageTables = std::array<TensorView, ops::kMaxViews>;

PassMemory take_pass(const PassShape& shape, const ops::Visibility& visibility, const PageTables& tables,
                     Arena& scratch);

// Derives what a model's layers see. REQUIRES: layers of one kind agree (config.json has one window and one flag for
// all). context_window: positions before a segment that are seen (--draft-window); 0: all.
ops::Visibility visibility_of(const model::Decoder& spec, int32_t context_window = 0);

}  // namespace volley::decode
