// Lays out a step's rows, drafts and choices: host arithmetic.
#include <algorithm>

#include "decode/round_parts.h"

namespace volley::decode {

int32_t Round::draft_length(int32_t drafter, int32_t most) const {
  if (most == 0) return 0;
  VOLLEY_CHECK(drafter >= 0 && drafter < std::ssize(drafters_));
  const auto length = std::ranges::lower_bound(config_.draft_lengths[drafter], most);
  VOLLEY_CHECK(length != config_.draft_lengths[drafter].end());
  return *length;
}

// Fills in a decoding segment, but for its place in the step.
void Round::add_block(const RoundSegment& segment, Layout& layout, ops::StepSegment& s) const {
  s.slot = segment.slot;
  s.draft = s.drafts_reserved = segment.draft;
  s.chooses = 1;
  s.shift = segment.shift;
  if (segment.simulate) {
    s.simulate = segment.simulate->p;
    s.simulated_confidence = segment.simulate->confidence;
  }
  s.rows_reserved = s.choices_reserved = segment.draft + 1;
  if (segment.masks != nullptr) {
    s.mask_row = layout.mask_rows;
    layout.mask_rows += s.choices_reserved;
  }
  layout.logprobs = layout.logprobs || slots_[segment.slot].wants_logprobs;
}

void Round::put_given(const RoundSegment& segment, int32_t row_begin, Layout& layout) const {
  const model::Decoder& spec = target_.spec();
  VOLLEY_CHECK(segment.known.empty() || !segment.axes.empty() || !slots_[segment.slot].shifts_rope);
  if (!segment.axes.empty()) {
    VOLLEY_CHECK(spec.has_rope_axes());
    VOLLEY_CHECK_EQ(segment.axes.size(), segment.known.size());
    layout.rope_axes = true;
  }
  for (const GivenRows& given : segment.given) {
    VOLLEY_CHECK_EQ(std::ssize(given.vectors), 1 + spec.added_layers);
    const auto rows = static_cast<int32_t>(std::ssize(given.vectors[0]) / spec.hidden);
    VOLLEY_CHECK(given.begin >= 0 && given.begin + rows <= std::ssize(segment.known));
    for (const auto& vectors : given.vectors) VOLLEY_CHECK_EQ(std::ssize(vectors), int64_t{rows} * spec.hidden);
    layout.given.push_back({row_begin + given.begin, rows, &given});
  }
}

Round::Layout Round::lay_out(std::span<const RoundSegment> segments, const VerifyBudget& budget,
                             ops::StepSegment* out) const {
  Layout layout;
  layout.drafter = budget.drafter;
  const bool shares = budget.rows != VerifyBudget::kAll;
  std::vector<int32_t> draft_counts, choice_counts;
  for (const RoundSegment& segment : segments) {
    const bool continues = segment.start == RoundSegment::kLastToken;
    VOLLEY_CHECK(slots_[segment.slot].running && continues == segment.known.empty());
    VOLLEY_CHECK(segment.draft == 0 || (continues && segment.chooses));
    VOLLEY_CHECK_LT(segment.draft, block_size());
    VOLLEY_CHECK_LE(segment.scored.size(), segment.known.size());
    ops::StepSegment& s = out[layout.n++] = {};
    s.row_begin = layout.rows;
    s.draft_begin = layout.drafts;
    s.choice_begin = layout.choices;
    if (continues) {
      VOLLEY_CHECK_EQ(layout.decoding + 1, layout.n);
      ++layout.decoding;
      add_block(segment, layout, s);
    } else {
      s.slot = segment.slot;
      s.start = segment.start;
      s.known = s.rows_reserved = static_cast<int32_t>(segment.known.size());
      s.chooses = s.choices_reserved = segment.chooses ? 1 : 0;
      if (segment.masks != nullptr && segment.chooses) s.mask_row = layout.mask_rows++;
      layout.logprobs = layout.logprobs || (segment.chooses && slots_[segment.slot].wants_logprobs);
    }
    put_given(segment, s.row_begin, layout);
    if (s.draft > 0) {
      s.block_index = layout.blocks++;
      draft_counts.push_back(s.draft);
      layout.draft_length = std::max(layout.draft_length, s.draft);
    }
    for (size_t j = 0; j < segment.scored.size(); ++j) {
      layout.scored.push_back({s.row_begin + static_cast<int32_t>(j), segment.scored[j]});
    }
    layout.drafts += s.draft;
    layout.max_segment_rows = std::max(layout.max_segment_rows, s.rows_reserved);
    if (shares && continues) {
      // The device assigns these rows and choices to requests.
      layout.rows = layout.choices = layout.shared_rows = budget.rows;
      continue;
    }
    layout.rows += s.rows_reserved;
    layout.choices += s.choices_reserved;
    choice_counts.push_back(s.choices_reserved);
  }
  VOLLEY_CHECK_LE(layout.rows, config_.max_rows);
  VOLLEY_CHECK_LE(layout.choices + std::ssize(layout.scored), int64_t{config_.max_rows});
  layout.draft_length = draft_length(layout.drafter, layout.draft_length);
  layout.draft_chunks = logit_chunks(draft_counts, config_.logit_rows);
  layout.choice_chunks = logit_chunks(choice_counts, config_.logit_rows);
  if (layout.shared_rows != VerifyBudget::kAll) put_shared_chunk_first(layout);
  set_chunks(layout, out);
  return layout;
}

// The decoding segments' choices have a chunk of logits of their own.
void Round::put_shared_chunk_first(Layout& layout) const {
  VOLLEY_CHECK(layout.shared_rows >= layout.decoding && layout.shared_rows <= most_shared_rows());
  for (LogitChunk& chunk : layout.choice_chunks) {
    chunk.segment_begin += layout.decoding;
    chunk.segment_end += layout.decoding;
    chunk.row_begin += layout.shared_rows;
  }
  layout.choice_chunks.insert(layout.choice_chunks.begin(), {0, layout.decoding, 0, layout.shared_rows});
}

void Round::set_chunks(const Layout& layout, ops::StepSegment* segments) {
  for (const LogitChunk& chunk : layout.choice_chunks) {
    for (int32_t i = chunk.segment_begin; i < chunk.segment_end; ++i) segments[i].choice_chunk = chunk.row_begin;
  }
  for (int32_t i = 0; i < layout.n; ++i) {
    for (const LogitChunk& chunk : layout.draft_chunks) {
      if (segments[i].block_index >= chunk.segment_begin && segments[i].block_index < chunk.segment_end) {
        segments[i].draft_chunk = chunk.row_begin;
      }
    }
  }
}

}  // namespace volley::decode
