// The arithmetic of chain.h for one row, the same source for CPU and GPU. Private to this folder.
#pragma once

#include "ops/chain/chain.h"
#include "ops/step/step_rule.h"

namespace volley::ops::chain {

VOLLEY_HOST_DEVICE inline void fill_row(const Step& step, const StepSegment& segment, int32_t j,
                                        const TokenId* previous, const Rows& out, const PassChoices& choices) {
  const SlotRow& slot = step.slots[segment.slot];
  const int32_t row = segment.block_index, first = step::first_index(segment, slot) + j;
  // A block that wants at most j tokens chooses nothing in this row. Padding wants none.
  const bool drafts = j < segment.draft;
  const TokenId token = j == 0 ? slot.last_token : drafts ? previous[row] : 0;
  step::fill_row(out, row, segment.slot, token, first, 0, 1, {});
  static_cast<int32_t*>(out.views[kWholeView].begin.data)[row] = step::least(1, first);
  out.segments[row] = {row, 1, segment.slot};
  static_cast<int32_t*>(choices.logit_rows.data)[row] = row;
  ChoiceSegment choice;
  choice.slot = segment.slot;
  choice.row_begin = row;
  choice.rows = drafts ? 1 : 0;
  choice.first_index = first + 1;
  choices.segments[row] = choice;
}

VOLLEY_HOST_DEVICE inline void put_draft(const StepSegment& segment, int32_t j, const TokenId* chosen,
                                         const float* probability, TokenId* tokens, float* confidence) {
  if (segment.block_index < 0 || j >= segment.draft) return;
  tokens[segment.draft_begin + j] = chosen[segment.block_index];
  confidence[segment.draft_begin + j] = probability[segment.block_index];
}

VOLLEY_HOST_DEVICE inline int32_t value(const TensorView& array, int64_t i) {
  return static_cast<const int32_t*>(array.data)[i];
}

// Whether rows a < b of the pass are of one sequence, whose positions lie as far apart as the rows.
VOLLEY_HOST_DEVICE inline bool are_of_one_run(const Rows& rows, int32_t a, int32_t b) {
  return a >= 0 && b < rows.rows && value(rows.slots, a) == value(rows.slots, b) &&
         value(rows.cache_positions, b) - value(rows.cache_positions, a) == b - a;
}

VOLLEY_HOST_DEVICE inline int64_t entry(const Rows& rows, const HiddenCarry& carry, int32_t row, int32_t position) {
  return static_cast<int64_t>(value(rows.slots, row)) * carry.depth + position % carry.depth;
}

// Where the hidden state before row r is.
enum class Source { kRow, kCarry, kNowhere };

VOLLEY_HOST_DEVICE inline Source source_of(const Rows& rows, bool has_rows, const HiddenCarry& carry, int32_t row) {
  if (has_rows && are_of_one_run(rows, row - 1, row)) return Source::kRow;
  const int32_t before = value(rows.cache_positions, row) - 1;
  if (before < 0 || value(carry.positions, entry(rows, carry, row, before)) != before) return Source::kNowhere;
  return Source::kCarry;
}

}  // namespace volley::ops::chain
