// Where a step's rows, drafts and choices go: host arithmetic.
#include <algorithm>

#include "spec/round_parts.h"

namespace volley::spec {
namespace {

// Slots of recorded steps: a step of fewer runs in the next larger one, so the sizes lie closer where a slot more costs
// more of the whole.
constexpr int32_t kSlotBuckets[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128};

}  // namespace

Round::Layout Round::lay_out(std::span<const RoundSegment> segments, ops::StepSegment* out) const {
  Layout layout;
  std::vector<int32_t> draft_counts, choice_counts;
  for (const RoundSegment& segment : segments) {
    const bool continues = segment.start == RoundSegment::kLastToken;
    VOLLEY_CHECK(slots_[segment.slot].running && continues == segment.known.empty());
    VOLLEY_CHECK(segment.draft == 0 || (proposer_ && continues && segment.chooses));
    VOLLEY_CHECK_LT(segment.draft, block_size());
    VOLLEY_CHECK(segment.masks == nullptr || under_way() == 0);
    ops::StepSegment& s = out[layout.n++] = {};
    s.slot = segment.slot;
    s.start = segment.start;
    s.known = continues ? 1 : static_cast<int32_t>(segment.known.size());
    s.draft = segment.draft;
    s.chooses = segment.chooses ? 1 : 0;
    s.rows_reserved = s.known + s.draft;
    s.choices_reserved = segment.chooses ? s.draft + 1 : 0;
    s.row_begin = layout.rows;
    s.draft_begin = layout.drafts;
    s.choice_begin = layout.choices;
    if (segment.masks != nullptr && segment.chooses) {
      s.mask_row = layout.mask_rows;
      layout.mask_rows += s.choices_reserved;
    }
    if (s.draft > 0) {
      s.block_index = layout.blocks++;
      draft_counts.push_back(s.draft);
    }
    choice_counts.push_back(s.choices_reserved);
    VOLLEY_CHECK_LE(segment.scored.size(), segment.known.size());
    for (size_t j = 0; j < segment.scored.size(); ++j) {
      layout.scored.push_back({s.row_begin + static_cast<int32_t>(j), segment.scored[j]});
    }
    layout.rows += s.rows_reserved;
    layout.drafts += s.draft;
    layout.choices += s.choices_reserved;
    layout.max_segment_rows = std::max(layout.max_segment_rows, s.rows_reserved);
    layout.logprobs = layout.logprobs || (segment.chooses && slots_[segment.slot].wants_logprobs);
  }
  VOLLEY_CHECK_LE(layout.rows, config_.max_rows);
  VOLLEY_CHECK_LE(layout.choices + std::ssize(layout.scored), int64_t{config_.max_rows});
  layout.draft_chunks = logit_chunks(draft_counts, config_.logit_rows);
  layout.choice_chunks = logit_chunks(choice_counts, config_.logit_rows);
  for (const LogitChunk& chunk : layout.choice_chunks) {
    for (int32_t i = chunk.segment_begin; i < chunk.segment_end; ++i) out[i].choice_chunk = chunk.row_begin;
  }
  for (int32_t i = 0; i < layout.n; ++i) {
    for (const LogitChunk& chunk : layout.draft_chunks) {
      if (out[i].block_index >= chunk.segment_begin && out[i].block_index < chunk.segment_end) {
        out[i].draft_chunk = chunk.row_begin;
      }
    }
  }
  return layout;
}

Round::Layout Round::lay_out_uniform(std::span<const RoundSegment> segments, GraphKey key,
                                     ops::StepSegment* out) const {
  const auto [slots, draft] = key;
  Layout layout;
  layout.n = slots;
  layout.blocks = draft > 0 ? slots : 0;
  layout.rows = layout.choices = slots * (draft + 1);
  layout.max_segment_rows = draft + 1;
  layout.drafts = slots * draft;
  layout.draft_chunks = logit_chunks(std::vector<int32_t>(layout.blocks, draft), config_.logit_rows);
  layout.choice_chunks = logit_chunks(std::vector<int32_t>(slots, draft + 1), config_.logit_rows);
  for (int32_t i = 0; i < slots; ++i) {
    ops::StepSegment& s = out[i] = {};
    s.slot = config_.slots;  // the scrap slot
    s.rows_reserved = s.choices_reserved = draft + 1;
    s.row_begin = s.choice_begin = i * (draft + 1);
    s.block_index = draft > 0 ? i : -1;
    s.draft_begin = i * draft;
    if (static_cast<size_t>(i) >= segments.size()) continue;
    VOLLEY_CHECK(slots_[segments[i].slot].running);
    s.slot = segments[i].slot;
    s.draft = segments[i].draft;
    s.chooses = 1;
    layout.logprobs = layout.logprobs || slots_[s.slot].wants_logprobs;
  }
  for (const LogitChunk& chunk : layout.choice_chunks) {
    for (int32_t i = chunk.segment_begin; i < chunk.segment_end; ++i) out[i].choice_chunk = chunk.row_begin;
  }
  for (const LogitChunk& chunk : layout.draft_chunks) {
    for (int32_t i = chunk.segment_begin; i < chunk.segment_end; ++i) out[i].draft_chunk = chunk.row_begin;
  }
  return layout;
}

// A step that only decodes runs as the smallest recorded one that holds it.
std::optional<Round::GraphKey> Round::graph_for(std::span<const RoundSegment> segments) const {
  int32_t draft = 0;
  for (const RoundSegment& segment : segments) {
    if (segment.start != RoundSegment::kLastToken || !segment.chooses || segment.masks != nullptr) return std::nullopt;
    draft = std::max(draft, segment.draft);
  }
  const int32_t drafted = draft > 0 ? block_size() - 1 : 0;
  for (const auto& [key, graph] : verify_graphs_) {
    if (key.first >= static_cast<int32_t>(segments.size()) && key.second == drafted) return key;
  }
  return std::nullopt;
}

void Round::record_graphs(const std::function<void(double)>& progress) {
  std::vector<GraphKey> keys;
  std::vector<int32_t> buckets(std::begin(kSlotBuckets), std::end(kSlotBuckets));
  buckets.push_back(config_.slots);
  for (const int32_t slots : buckets) {
    for (const int32_t draft : {0, block_size() - 1}) {
      const GraphKey key(std::min(slots, config_.slots), draft);
      const bool fits = int64_t{key.first} * (draft + 1) <= config_.max_rows;
      if (fits && std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  std::vector<ops::StepSegment> segments(memory_->max_segments);
  for (const GraphKey& key : keys) {
    const Layout layout = lay_out_uniform({}, key, segments.data());
    if (key.second > 0) {
      auto graph = device_.record([&] { draft(layout); });
      if (graph == nullptr) return;  // this device has none
      draft_graphs_[key] = std::move(graph);
    }
    auto graph = device_.record([&] { verify(layout, [] {}); });
    if (graph == nullptr) return;
    verify_graphs_[key] = std::move(graph);
    if (progress) progress(static_cast<double>(verify_graphs_.size()) / static_cast<double>(keys.size()));
  }
}

}  // namespace volley::spec
