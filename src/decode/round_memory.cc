// Finds a step's scratch memory by running the code of the largest steps on a dry stream.
#include <algorithm>

#include "decode/round_parts.h"
#include "device/dry_run.h"

namespace volley::decode {
namespace {

// Decoding segments, and perhaps a prompt's chunk beside them.
struct LargeStep {
  std::vector<int32_t> drafts;          // per decoding segment
  int32_t known = 0;                    // rows of the prompt's chunk; 0: none
  int32_t shared = VerifyBudget::kAll;  // rows that the decoding segments share
};

int32_t rows_of(const std::vector<int32_t>& drafts) {
  int32_t rows = 0;
  for (const int32_t draft : drafts) rows += 1 + draft;
  return rows;
}

// Distributes `rows` over this many blocks.
std::vector<int32_t> blocks_of(int32_t segments, int32_t rows, int32_t block_size) {
  std::vector<int32_t> drafts(segments);
  int32_t left = rows - segments;
  for (int32_t& draft : drafts) {
    draft = std::clamp(left, 0, block_size - 1);
    left -= draft;
  }
  return drafts;
}

// More segments than these take no more memory by their number alone (gated_delta_test.cc).
constexpr int32_t kFewSegments = 8;

// Memory grows with a pass's rows, segments and choices and with the longest segment. More segments make the longest
// one shorter, and some memory may grow with both. So steps of few segments are tried, too. REQUIRES: rows for all
// slots.
std::vector<LargeStep> largest_steps(const RoundConfig& config, int32_t block_size, int32_t most_shared) {
  const int32_t slots = config.slots, rows = config.max_rows;
  std::vector<LargeStep> steps;
  const auto decode = [&](int32_t segments, int32_t most) {
    return blocks_of(segments, static_cast<int32_t>(std::min(int64_t{segments} * block_size, int64_t{most})),
                     block_size);
  };
  steps.push_back({decode(slots, rows)});
  if (rows >= slots) {
    const std::vector<int32_t> blocks = decode(slots - 1, rows - 1), plain(slots - 1);
    steps.push_back({blocks, rows - rows_of(blocks)});
    steps.push_back({plain, rows - rows_of(plain)});
  }
  for (int32_t segments = 1; segments <= std::min(kFewSegments, std::min(slots, rows)); ++segments) {
    steps.push_back({std::vector<int32_t>(segments - 1), rows - (segments - 1)});
  }
  for (size_t i = steps.size(); i-- > 0;) {
    LargeStep shared = steps[i];
    shared.shared = std::min(rows_of(shared.drafts), most_shared);
    if (shared.drafts.empty() || shared.shared < std::ssize(shared.drafts)) continue;
    if (shared.known > 0) shared.known = rows - shared.shared;
    steps.push_back(std::move(shared));
  }
  return steps;
}

}  // namespace

int64_t Round::largest_scratch() {
  scratch_ = std::make_unique<Arena>(Arena::measuring());
  const DryRun dry(stream_);
  const std::vector<Slot> slots = slots_;
  for (Slot& slot : slots_) slot.running = true;
  Buffer& scores = memory_->scores;  // a prompt's logprobs use addresses counted from here
  scores = Buffer(no_memory(), static_cast<size_t>(memory_->scores_bytes(config_.max_rows)), [](void*, size_t) {});

  int32_t longest = 0;  // the drafter of the longest blocks
  for (int32_t i = 0; i < std::ssize(drafters_); ++i) {
    if (drafters_[i].proposer->proposals() == block_size() - 1) longest = i;
  }
  std::vector<ops::StepSegment> placed(config_.slots);
  const std::vector<TokenId> tokens(config_.max_rows);
  for (const LargeStep& step : largest_steps(config_, block_size(), most_shared_rows())) {
    std::vector<RoundSegment> segments(step.drafts.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i].slot = static_cast<int32_t>(i);
      segments[i].draft = step.drafts[i];
      segments[i].chooses = true;
    }
    if (step.known > 0) {
      RoundSegment& chunk = segments.emplace_back();
      chunk.slot = static_cast<int32_t>(step.drafts.size());
      chunk.start = 0;
      chunk.known = std::span(tokens).first(step.known);
      chunk.scored = chunk.known.first(step.known - 1);
      chunk.chooses = true;
    }
    Layout layout = lay_out(segments, {.rows = step.shared, .drafter = longest}, placed.data());
    if (step.known > 0) {
      layout.rope_axes = target_.spec().has_rope_axes();
      layout.given.push_back({layout.rows - step.known, step.known});  // several take no more than one
    }
    // Other blocks may fill the rest of a chunk of logits.
    layout.choice_chunks = {{0, layout.n, 0, std::min(layout.choices, config_.logit_rows)}};
    verify(layout);
  }
  if (tower_ != nullptr) tower_->run_dry(*scratch_);
  for (int32_t drafter = 0; drafter < std::ssize(drafters_); ++drafter) {
    const int32_t length = config_.draft_lengths[drafter].back();
    Layout layout = lay_out_recorded({}, {{drafter, length, config_.slots}, {}}, placed.data());
    layout.draft_chunks = {{0, layout.blocks, 0, std::min(layout.drafts, config_.logit_rows)}};
    draft(layout);
  }
  slots_ = slots;
  scores.reset();
  return static_cast<int64_t>(scratch_->peak());
}

// Allocates the most that steps with prompt logprobs and passes without rows need.
Status Round::take_all_memory() {
  for (const auto& flight : free_) VOLLEY_RETURN_IF_ERROR(reserve_scores(config_.max_rows, *flight));
  for (int i = 0; i < 2; ++i) {
    auto pass = std::make_unique<IdlePass>();
    VOLLEY_ASSIGN(pass->touched, device_.allocate_host(sizeof(int64_t)));
    pass->end = device_.make_fence();
    idle_passes_.push_back(std::move(pass));
  }
  return {};
}

}  // namespace volley::decode
