// Helpers that the scheduler's tests share. Threads: one.
#pragma once

#include <volley/sampling.h>

#include <algorithm>
#include <map>
#include <vector>

#include "sched/scheduler.h"

namespace volley::sched {

using Tokens = std::vector<TokenId>;

// Room for everything, and numbers small enough to follow by hand: pages of 4 positions, blocks of 4 tokens.
inline SchedulerConfig roomy() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 64,
          .prefill_chunk = 16,
          .max_model_len = 128,
          .page_size = 4,
          .block_size = 4,
          .groups = {{.pages = 200}}};
}

// first, first + 1, …
inline Tokens counting(TokenId first, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

// Results of a plan: each choosing segment commits as many tokens as `committed` says for its request, else one. The
// tokens are 1000, 1001, … by their index in the request, so that equal requests stay equal.
inline std::vector<StepResult> results_of(const StepPlan& plan, const std::map<RequestId, int32_t>& committed = {}) {
  std::vector<StepResult> results;
  for (const PlannedSegment& segment : plan.segments) {
    if (!segment.chooses) continue;
    const auto asked = committed.find(segment.id);
    const int32_t count = asked != committed.end() ? asked->second : 1;
    results.push_back({.id = segment.id, .tokens = counting(1000 + segment.start + segment.known, count)});
  }
  return results;
}

inline const PlannedSegment* segment_of(const StepPlan& plan, RequestId id) {
  const auto found = std::ranges::find(plan.segments, id, &PlannedSegment::id);
  return found != plan.segments.end() ? &*found : nullptr;
}

}  // namespace volley::sched
