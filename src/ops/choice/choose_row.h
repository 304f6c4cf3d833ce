// The whole rule for one row.
#pragma once

#include "ops/choice/adjust.h"
#include "ops/choice/kernels.h"
#include "ops/choice/slices.h"

namespace volley::ops::choice {

// Where one row's results are stored; null: not wanted. See ChoiceOutput.
struct RowOutput {
  TokenId* token = nullptr;
  float* probability = nullptr;
  RowLogprobs* logprobs = nullptr;
  uint8_t* finite = nullptr;
};

// Scratch memory for one row, [vocab] each.
struct RowScratch {
  float* adjusted = nullptr;
  Candidate* candidates = nullptr;
};

void choose_row(const RowInput& in, const RowOutput& out, const Slices& slices, const RowScratch& scratch);

}  // namespace volley::ops::choice
