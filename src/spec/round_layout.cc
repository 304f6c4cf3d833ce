// Where a step's rows, drafts and choices go, and which recorded graphs serve it: host arithmetic.
#include <algorithm>
#include <set>

#include "spec/round_parts.h"

namespace volley::spec {
namespace {

// Slots of recorded steps: a step of fewer runs in the next larger one, so the sizes lie closer where a slot more costs
// more of the whole.
constexpr int32_t kSlotBuckets[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128};

// Rows of recorded steps that share out a verify budget: multiples of what the products' tiles are made of, an eighth
// or so apart.
constexpr int32_t kRowBuckets[] = {4,   8,   12,  16,  24,  32,  40,  48,  56,  64,  80,  96,  112, 128, 144,
                                   160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024};

int32_t next_of(std::span<const int32_t> ascending, int32_t least) {
  const auto found = std::ranges::lower_bound(ascending, least);
  return found == ascending.end() ? 0 : *found;
}

}  // namespace

int32_t Round::draft_length(int32_t most) const {
  if (most == 0) return 0;
  const int32_t length = next_of(config_.draft_lengths, most);
  return length > 0 ? length : block_size() - 1;
}

// What a segment that decodes says of itself, whatever its place in the step.
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

Round::Layout Round::lay_out(std::span<const RoundSegment> segments, const VerifyBudget& budget,
                             ops::StepSegment* out) const {
  Layout layout;
  const bool shares = budget.rows != VerifyBudget::kAll;
  std::vector<int32_t> draft_counts, choice_counts;
  for (const RoundSegment& segment : segments) {
    const bool continues = segment.start == RoundSegment::kLastToken;
    VOLLEY_CHECK(slots_[segment.slot].running && continues == segment.known.empty());
    VOLLEY_CHECK(segment.draft == 0 || (proposer_ && continues && segment.chooses));
    VOLLEY_CHECK_LT(segment.draft, block_size());
    VOLLEY_CHECK(segment.masks == nullptr || under_way() == 0);
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
      // The device says which rows and choices are whose.
      layout.rows = layout.choices = layout.shared_rows = budget.rows;
      continue;
    }
    layout.rows += s.rows_reserved;
    layout.choices += s.choices_reserved;
    choice_counts.push_back(s.choices_reserved);
  }
  VOLLEY_CHECK_LE(layout.rows, config_.max_rows);
  VOLLEY_CHECK_LE(layout.choices + std::ssize(layout.scored), int64_t{config_.max_rows});
  layout.draft_length = draft_length(layout.draft_length);
  layout.draft_chunks = logit_chunks(draft_counts, config_.logit_rows);
  layout.choice_chunks = logit_chunks(choice_counts, config_.logit_rows);
  if (layout.shared_rows != VerifyBudget::kAll) put_shared_chunk_first(layout);
  set_chunks(layout, out);
  return layout;
}

// The decoding segments' choices are a chunk of logits of their own.
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

// What a recorded step looks like, with the first segments in use. Its sizes are those of the graphs, and the same for
// everything that they replay.
Round::Layout Round::lay_out_recorded(std::span<const RoundSegment> segments, const GraphPlan& plan,
                                      ops::StepSegment* out) const {
  Layout layout;
  const VerifyKey& verify = plan.verify;
  const int32_t draft = plan.draft_length, blocks = draft > 0 ? plan.draft_slots : 0;
  const bool shares = verify.kind == VerifyKind::kShared;
  const int32_t each = verify.kind == VerifyKind::kBlocks ? block_size() : 1;  // rows, unless they are shared out
  layout.n = layout.decoding = shares ? std::min(verify.size, config_.slots) : verify.size;
  layout.blocks = blocks;
  layout.draft_length = draft;
  layout.drafts = blocks * draft;
  layout.rows = layout.choices = shares ? verify.size : layout.n * each;
  layout.shared_rows = shares ? verify.size : VerifyBudget::kAll;
  layout.max_segment_rows = shares ? block_size() : each;
  layout.draft_chunks = logit_chunks(std::vector<int32_t>(blocks, draft), config_.logit_rows);
  layout.choice_chunks = logit_chunks(std::vector<int32_t>(shares ? 0 : layout.n, each), config_.logit_rows);
  if (shares) put_shared_chunk_first(layout);
  layout.segments = std::max(layout.n, blocks);
  for (int32_t i = 0; i < layout.segments; ++i) {
    ops::StepSegment& s = out[i] = {};
    s.slot = config_.slots;  // the scrap slot
    if (static_cast<size_t>(i) < segments.size()) {
      VOLLEY_CHECK(slots_[segments[i].slot].running);
      add_block(segments[i], layout, s);
    } else if (shares) {
      s.known = 0;  // no rows at all
    }
    s.rows_reserved = each;
    s.choices_reserved = each;
    s.drafts_reserved = i < blocks ? draft : 0;
    s.row_begin = s.choice_begin = i * each;
    s.block_index = i < blocks ? i : -1;
    s.draft_begin = i * draft;
  }
  set_chunks(layout, out);
  return layout;
}

// A step that only decodes runs as the smallest recorded one that holds it.
std::optional<Round::GraphPlan> Round::graphs_for(std::span<const RoundSegment> segments,
                                                  const VerifyBudget& budget) const {
  int32_t most_draft = 0, all_rows = 0;
  for (const RoundSegment& segment : segments) {
    if (segment.start != RoundSegment::kLastToken || !segment.chooses || segment.masks != nullptr) return std::nullopt;
    most_draft = std::max(most_draft, segment.draft);
    all_rows += 1 + segment.draft;
  }
  const auto n = static_cast<int32_t>(segments.size());
  const auto first = [&](VerifyKind kind, int32_t least) {
    const auto found = verify_graphs_.lower_bound({kind, least});
    return found != verify_graphs_.end() && found->first.kind == kind ? std::optional(found->first) : std::nullopt;
  };
  GraphPlan plan;
  plan.draft_length = draft_length(most_draft);
  if (plan.draft_length > 0) {
    for (const auto& [key, graph] : draft_graphs_) {
      if (key.second == plan.draft_length && key.first >= n && plan.draft_slots == 0) plan.draft_slots = key.first;
    }
    if (plan.draft_slots == 0) return std::nullopt;
  }
  std::optional<VerifyKey> verify;
  if (plan.draft_length == 0) {
    verify = first(VerifyKind::kPlain, n);
  } else {
    const int32_t rows = budget.rows == VerifyBudget::kAll ? all_rows : std::min(budget.rows, all_rows);
    verify = first(VerifyKind::kShared, rows);
    if (!verify && rows == all_rows) verify = first(VerifyKind::kBlocks, n);
  }
  if (!verify) return std::nullopt;
  plan.verify = *verify;
  return plan;
}

void Round::record_graphs(const std::function<void(double)>& progress) {
  std::set<int32_t> slot_buckets;
  for (const int32_t slots : kSlotBuckets) slot_buckets.insert(std::min(slots, config_.slots));
  slot_buckets.insert(config_.slots);
  std::vector<int32_t> lengths = config_.draft_lengths;
  if (lengths.empty() && block_size() > 1) lengths.push_back(block_size() - 1);

  std::vector<GraphPlan> plans;
  for (const int32_t slots : slot_buckets) {
    plans.push_back({0, 0, {VerifyKind::kPlain, slots}});
    for (const int32_t length : lengths) plans.push_back({slots, length, {}});
    const int64_t rows = int64_t{slots} * block_size();
    if (block_size() > 1 && rows > most_shared_rows() && rows <= config_.max_rows) {
      plans.push_back({0, 0, {VerifyKind::kBlocks, slots}});
    }
  }
  const int64_t most = std::min<int64_t>({most_shared_rows(), config_.max_rows, int64_t{config_.slots} * block_size()});
  for (const int32_t rows : kRowBuckets) {
    const auto size = static_cast<int32_t>(std::min<int64_t>(rows, most));
    if (block_size() == 1 || (!row_buckets_.empty() && row_buckets_.back() == size)) break;
    row_buckets_.push_back(size);
    plans.push_back({0, 0, {VerifyKind::kShared, size}});
  }

  std::vector<ops::StepSegment> segments(memory_->max_segments);
  for (size_t i = 0; i < plans.size(); ++i) {
    const GraphPlan& plan = plans[i];
    const Layout layout = lay_out_recorded({}, plan, segments.data());
    auto graph =
        plan.draft_length > 0 ? device_.record([&] { draft(layout); }) : device_.record([&] { verify(layout, [] {}); });
    if (graph == nullptr) {  // this device has none
      row_buckets_.clear();
      return;
    }
    if (plan.draft_length > 0) {
      draft_graphs_[{plan.draft_slots, plan.draft_length}] = std::move(graph);
    } else {
      verify_graphs_[plan.verify] = std::move(graph);
    }
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(plans.size()));
  }
}

}  // namespace volley::spec
