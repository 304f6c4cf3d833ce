// The arithmetic of step.h for one row or one segment, the same source for CPU and GPU. Private to this folder.
#pragma once

#include "base/host_device.h"
#include "base/ids.h"
#include "base/mix.h"
#include "ops/acceptance/acceptance.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/step/step.h"

namespace volley::ops::step {

VOLLEY_HOST_DEVICE inline int32_t least(int32_t a, int32_t b) {
  return a < b ? a : b;
}
VOLLEY_HOST_DEVICE inline int32_t most(int32_t a, int32_t b) {
  return a > b ? a : b;
}

VOLLEY_HOST_DEVICE inline int32_t first_index(const StepSegment& segment, const SlotRow& slot) {
  return segment.start == StepSegment::kFromSlot ? most(0, slot.length - 1) : segment.start;
}

// A picture has more tokens than it takes rotary positions, so the tokens after it have an offset.
VOLLEY_HOST_DEVICE constexpr RopePosition rope_position(SequenceIndex index, int32_t offset) {
  return RopePosition(index.value + offset);
}
VOLLEY_HOST_DEVICE constexpr CachePosition cache_position(SequenceIndex index) {
  return CachePosition(index.value);
}

// Row `row` of the pass: the token at sequence index `first` + i of a segment of `rows` rows.
VOLLEY_HOST_DEVICE inline void fill_row(const Rows& out, int32_t row, int32_t slot, TokenId token, int32_t first,
                                        int32_t i, int32_t rows, const Visibility& visibility, int32_t window_from = 0,
                                        int32_t rope_offset = 0) {
  const SequenceIndex index(first + i);
  const int32_t position = cache_position(index).value, end = cache_position(SequenceIndex(first + rows)).value;
  const int32_t begin = visibility.context_window > 0 ? most(0, first - visibility.context_window) : 0;
  const auto set = [row](const TensorView& array, int32_t value) { static_cast<int32_t*>(array.data)[row] = value; };
  set(out.token_ids, token);
  set(out.slots, slot);
  set(out.rope_positions, rope_position(index, rope_offset).value);
  set(out.cache_positions, position);
  set(out.views[kWholeView].begin, begin);
  set(out.views[kWholeView].end, visibility.mask == Mask::kCausal ? position + 1 : end);
  if (visibility.layer_window == 0) return;
  set(out.views[kWindowView].begin, most(most(begin, window_from), position - visibility.layer_window + 1));
  const int32_t last = visibility.window_mask == Mask::kCausal ? position + 1 : end;
  set(out.views[kWindowView].end, least(last, position + visibility.layer_window));
}

VOLLEY_HOST_DEVICE inline void fill_draft_row(const Step& step, const StepSegment& segment, const DraftBlock& block,
                                              const Visibility& visibility, const Rows& out, const PassChoices& choices,
                                              int32_t i) {
  const SlotRow& slot = step.slots[segment.slot];
  const int32_t first = first_index(segment, slot), row = segment.block_index * block.rows + i;
  // Every row sees a position: the block begins at the end of the existing context, or after it.
  fill_row(out, row, segment.slot, i == 0 ? slot.last_token : block.mask_token, first, i, block.rows, visibility,
           least(slot.draft_context, first));
  const int32_t j = i - block.first_proposal;
  if (j >= 0 && j < segment.drafts_reserved) {
    static_cast<int32_t*>(choices.logit_rows.data)[segment.draft_begin + j] = row;
  }
  if (i > 0) return;
  out.segments[segment.block_index] = {row, block.rows, segment.slot};
  ChoiceSegment choice;
  choice.slot = segment.slot;
  choice.row_begin = segment.draft_begin - segment.draft_chunk;
  choice.rows = segment.draft;
  choice.first_index = first + 1;
  choices.segments[segment.block_index] = choice;
}

VOLLEY_HOST_DEVICE inline TokenId verify_token(const Step& step, const StepSegment& segment, const TokenId* drafts,
                                               int32_t i) {
  if (segment.start != StepSegment::kFromSlot) return step.tokens[segment.token_begin + i];
  return i == 0 ? step.slots[segment.slot].last_token : drafts[segment.draft_begin + i - 1];
}

// Rows of the segment that are not padding. A slot that is done has none: a step under way when the request ended must
// leave the recurrent state where the sequence ends, because that state may be kept.
VOLLEY_HOST_DEVICE inline int32_t verify_rows(const Step& step, const StepSegment& segment) {
  return step.slots[segment.slot].done != 0 ? 0 : segment.known + segment.draft;
}

// The row's positions on each axis. given: null where they are the row's one position.
VOLLEY_HOST_DEVICE inline void fill_axes(const Rows& out, int32_t row, const int32_t* given) {
  int32_t* position = static_cast<int32_t*>(out.rope_positions.data) + row;
  int32_t* axes = static_cast<int32_t*>(out.rope_axes.data) + int64_t{row} * kRopeAxes;
  for (int32_t i = 0; i < kRopeAxes; ++i) axes[i] = given != nullptr ? given[i] : *position;
  *position = row;
}

VOLLEY_HOST_DEVICE inline void fill_verify_row(const Step& step, int32_t index, const TokenId* drafts,
                                               const Visibility& visibility, const Rows& out,
                                               const PassChoices& choices, int32_t i) {
  const StepSegment& segment = step.segments[index];
  const int32_t rows = verify_rows(step, segment), row = segment.row_begin + i;
  const SlotRow& slot = step.slots[segment.slot];
  const int32_t first = first_index(segment, slot);
  if (i < rows) {
    fill_row(out, row, segment.slot, verify_token(step, segment, drafts, i), first, i, rows, visibility, 0,
             slot.rope_offset);
  } else {
    fill_row(out, row, step.scrap_slot, 0, 0, 0, 1, visibility);
  }
  if (out.rope_axes.data != nullptr) {
    const bool given = i < rows && segment.start != StepSegment::kFromSlot;
    fill_axes(out, row, given ? step.axes + int64_t{segment.token_begin + i} * kRopeAxes : nullptr);
  }
  const int32_t j = i - most(0, segment.known - 1);  // choice made from this row
  if (j >= 0 && j < segment.choices_reserved) {
    static_cast<int32_t*>(choices.logit_rows.data)[segment.choice_begin + j] = row;
  }
}

// Also called for a segment without rows.
VOLLEY_HOST_DEVICE inline void fill_verify_segment(const Step& step, int32_t index, const TokenId* drafts,
                                                   const Rows& out, const PassChoices& choices) {
  const StepSegment& segment = step.segments[index];
  const int32_t first = first_index(segment, step.slots[segment.slot]);
  out.segments[index] = {segment.row_begin, verify_rows(step, segment), segment.slot};
  ChoiceSegment choice;
  choice.slot = segment.slot;
  choice.row_begin = segment.choice_begin - segment.choice_chunk;
  choice.rows = segment.chooses != 0 ? segment.draft + 1 : 0;
  choice.first_index = first + segment.known;
  choice.prefix = drafts + segment.draft_begin;
  if (segment.mask_row >= 0) {
    choice.mask = choices.masks + static_cast<int64_t>(segment.mask_row) * choices.mask_words;
    choice.mask_words = choices.mask_words;
  }
  choices.segments[index] = choice;
}

// Simulated acceptance brings its own confidence.
VOLLEY_HOST_DEVICE inline float draft_confidence(const StepSegment& segment, const SharePlan& plan, int32_t position) {
  return segment.simulate >= 0 ? segment.simulated_confidence : plan.confidence[segment.draft_begin + position];
}

// A decoding segment that verifies `verified` of its drafted tokens, and has its rows from `row` on.
VOLLEY_HOST_DEVICE inline void place_segment(StepSegment& segment, int32_t row, int32_t verified, int32_t reserve) {
  segment.draft = verified;
  segment.row_begin = segment.choice_begin = row;
  segment.rows_reserved = segment.choices_reserved = segment.known + verified + reserve;
}

// The number of SplitMix64 that follows the state x.
VOLLEY_HOST_DEVICE inline uint64_t mix(uint64_t x) {
  return mix_bits(x + kSplitMixStep);
}

// How many drafted tokens are accepted in simulated acceptance: each token whose predecessors were accepted is accepted
// with probability p, so position i survives with p^i. Runs are repeatable.
VOLLEY_HOST_DEVICE inline int32_t simulated_acceptance(double p, int32_t drafted, uint64_t seed, int32_t start) {
  uint64_t state = mix(seed ^ mix(static_cast<uint64_t>(start)));
  int32_t accepted = 0;
  while (accepted < drafted) {
    state = mix(state);
    if (static_cast<double>(state >> 11) * 0x1.0p-53 >= p) break;
    ++accepted;
  }
  return accepted;
}

// tokens: [stride] out.
VOLLEY_HOST_DEVICE inline StepOutcome accept_segment(const StepSegment& segment, SlotRow& slot, const AcceptInputs& in,
                                                     TokenId* tokens) {
  StepOutcome outcome;
  outcome.length = slot.length;
  if (segment.chooses == 0 || slot.done != 0) return outcome;
  const int32_t start = first_index(segment, slot), before = start + segment.known;
  const int32_t produced = before - slot.prompt_length;
  AcceptBlock block;
  block.drafted = segment.draft;
  block.draft = in.drafts + segment.draft_begin;
  block.choice = in.choices + segment.choice_begin;
  if (segment.simulate >= 0) {
    block.forced_accept = simulated_acceptance(segment.simulate, segment.draft, slot.seed, start);
  }
  block.min_tokens_left = most(0, slot.min_tokens - produced);
  block.budget = slot.max_tokens - produced;
  block.end_ids = slot.end_ids;
  block.end_count = slot.end_count;
  const AcceptResult result = accept_block(block, tokens);
  outcome.accepted = result.accepted;
  outcome.committed = result.committed;
  outcome.ended = result.ended ? 1 : 0;
  outcome.exhausted = result.exhausted ? 1 : 0;
  outcome.verified = segment.draft;
  outcome.choice_begin = segment.choice_begin;
  for (int32_t i = 0; i < result.committed && outcome.finite != 0; ++i) {
    if (in.finite[segment.choice_begin + i] != 0) continue;
    // Tokens chosen before it stand, as they do when each token has a step of its own.
    outcome.finite = outcome.ended = outcome.exhausted = 0;
    outcome.committed = i;
    if (outcome.accepted > i) outcome.accepted = i;
  }
  slot.length = outcome.length = before + outcome.committed;
  if (outcome.committed > 0) slot.last_token = tokens[outcome.committed - 1];
  slot.done = outcome.ended != 0 || outcome.exhausted != 0 || outcome.finite == 0 ? 1 : 0;
  return outcome;
}

}  // namespace volley::ops::step
