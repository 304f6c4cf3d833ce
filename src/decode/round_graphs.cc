// Chooses the steps that are recorded once and replayed, lays them out, and finds the one that serves a step.
#include <algorithm>
#include <set>

#include "decode/round_parts.h"

namespace volley::decode {
namespace {

// A step runs in the recorded one with the next larger number of slots. A step of few slots mostly reads weights, so
// sizes may double there; many slots need closer sizes.
constexpr int32_t kSlotBuckets[] = {1,   2,   4,   8,   16,  24,  32,   48,   64,   96,
                                    128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072};

// The same for steps that share out rows. They come in many sizes of rows, and an unused slot costs little.
constexpr int32_t kSharingSlots[] = {1, 8, 128, 512};

// Rows of recorded steps that share out a verify budget: multiples of the products' tiles, about an eighth apart.
constexpr int32_t kRowBuckets[] = {4,   8,   16,  24,  32,  48,  64,  80,  96,  112, 128, 144, 160,
                                   192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024};

}  // namespace

// Lays out a recorded step whose first segments are in use. The graphs fix its sizes for every step that replays it.
Round::Layout Round::lay_out_recorded(std::span<const RoundSegment> segments, const GraphPlan& plan,
                                      ops::StepSegment* out) const {
  Layout layout;
  const VerifyKey& verify = plan.verify;
  const int32_t draft = plan.draft.length, blocks = draft > 0 ? plan.draft.slots : 0;
  const bool shares = verify.kind == VerifyKind::kShared;
  const int32_t each = verify.kind == VerifyKind::kBlocks ? block_size() : 1;  // rows of each slot, unless shared out
  layout.n = layout.decoding = shares ? std::min(verify.slots, verify.rows) : verify.slots;
  layout.blocks = blocks;
  layout.drafter = plan.draft.drafter;
  layout.draft_length = draft;
  layout.drafts = blocks * draft;
  layout.rows = layout.choices = shares ? verify.rows : layout.n * each;
  layout.shared_rows = shares ? verify.rows : VerifyBudget::kAll;
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
      s.known = 0;  // the scrap slot has no rows
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

// Finds the smallest recorded step that holds a step which only decodes.
std::optional<Round::GraphPlan> Round::graphs_for(std::span<const RoundSegment> segments,
                                                  const VerifyBudget& budget) const {
  int32_t most_draft = 0, all_rows = 0;
  for (const RoundSegment& segment : segments) {
    if (segment.start != RoundSegment::kLastToken || !segment.chooses) return std::nullopt;
    most_draft = std::max(most_draft, segment.draft);
    all_rows += 1 + segment.draft;
  }
  const auto n = static_cast<int32_t>(segments.size());
  // Keys are ordered by kind, slots and rows.
  const auto first = [&](VerifyKind kind, int32_t rows) -> std::optional<VerifyKey> {
    for (auto it = verify_graphs_.lower_bound({kind, n, 0}); it != verify_graphs_.end(); ++it) {
      if (it->first.kind != kind) break;
      if (it->first.rows >= rows) return it->first;
    }
    return std::nullopt;
  };
  GraphPlan plan;
  plan.draft.length = draft_length(budget.drafter, most_draft);
  if (plan.draft.length > 0) {
    const auto found = draft_graphs_.lower_bound({budget.drafter, plan.draft.length, n});
    const bool serves = found != draft_graphs_.end() && found->first.drafter == budget.drafter &&
                        found->first.length == plan.draft.length;
    if (!serves) return std::nullopt;
    plan.draft = found->first;
  }
  std::optional<VerifyKey> verify;
  if (plan.draft.length == 0) {
    verify = first(VerifyKind::kPlain, 0);
  } else {
    const int32_t rows = budget.rows == VerifyBudget::kAll ? all_rows : std::min(budget.rows, all_rows);
    verify = first(VerifyKind::kShared, rows);
    if (!verify && rows == all_rows) verify = first(VerifyKind::kBlocks, 0);
  }
  if (!verify) return std::nullopt;
  plan.verify = *verify;
  return plan;
}

std::vector<Round::GraphPlan> Round::graph_plans() const {
  const auto up_to_all = [&](std::span<const int32_t> sizes) {
    std::set<int32_t> slots{config_.slots};
    for (const int32_t n : sizes) slots.insert(std::min(n, config_.slots));
    return slots;
  };
  std::vector<GraphPlan> plans;
  for (const int32_t slots : up_to_all(kSlotBuckets)) {
    plans.push_back({{}, {VerifyKind::kPlain, slots, 0}});
    for (int32_t drafter = 0; drafter < std::ssize(drafters_); ++drafter) {
      for (const int32_t length : config_.draft_lengths[drafter]) plans.push_back({{drafter, length, slots}, {}});
    }
    const int64_t rows = int64_t{slots} * block_size();
    if (block_size() > 1 && rows > most_shared_rows() && rows <= config_.max_rows) {
      plans.push_back({{}, {VerifyKind::kBlocks, slots, 0}});
    }
  }
  int32_t fewer = 0;  // slots of the next smaller size
  for (const int32_t slots : up_to_all(kSharingSlots)) {
    const int64_t most =
        std::min({int64_t{slots} * block_size(), int64_t{most_shared_rows()}, int64_t{config_.max_rows}});
    int32_t before = fewer;
    fewer = slots;
    for (size_t i = 0; block_size() > 1 && before < most; ++i) {
      const int32_t rows = i < std::size(kRowBuckets) ? kRowBuckets[i] : static_cast<int32_t>(most);
      if (rows <= before) continue;
      before = static_cast<int32_t>(std::min<int64_t>(rows, most));
      plans.push_back({{}, {VerifyKind::kShared, slots, before}});
    }
  }
  return plans;
}

void Round::record_graphs(const std::function<void(double)>& progress) {
  const std::vector<GraphPlan> plans = graph_plans();
  std::set<int32_t> rows;
  std::vector<ops::StepSegment> segments(memory_->max_segments);
  for (size_t i = 0; i < plans.size(); ++i) {
    const GraphPlan& plan = plans[i];
    const Layout layout = lay_out_recorded({}, plan, segments.data());
    auto graph =
        plan.draft.length > 0 ? device_.record([&] { draft(layout); }) : device_.record([&] { verify(layout); });
    if (graph == nullptr) return;  // this device records no graphs
    if (plan.draft.length > 0) {
      draft_graphs_[plan.draft] = std::move(graph);
    } else {
      verify_graphs_[plan.verify] = std::move(graph);
      if (plan.verify.kind == VerifyKind::kShared) rows.insert(plan.verify.rows);
    }
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(plans.size()));
  }
  traits_.row_buckets.assign(rows.begin(), rows.end());
  if (config_.exchange != nullptr) idle_graph_ = device_.record([&] { pass_without_rows(); });
}

}  // namespace volley::decode
