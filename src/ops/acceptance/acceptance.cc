#include "ops/acceptance/acceptance.h"

#include <algorithm>

#include "base/check.h"

namespace volley::ops {
namespace {

int32_t matching_prefix(const AcceptSegment& segment) {
  if (segment.forced_accept >= 0) return std::min(segment.forced_accept, segment.drafted);
  int32_t n = 0;
  while (n < segment.drafted && segment.draft[n] == segment.choice[n]) ++n;
  return n;
}

bool is_end(const AcceptSegment& segment, int32_t token) {
  return std::find(segment.end_ids.begin(), segment.end_ids.end(), token) != segment.end_ids.end();
}

AcceptResult accept_one(const AcceptSegment& segment, int32_t* tokens) {
  VOLLEY_CHECK_GE(segment.budget, 1);
  const int32_t kept = matching_prefix(segment);
  AcceptResult result;
  while (result.committed <= kept && result.committed < segment.budget && !result.ended) {
    const int32_t i = result.committed++;
    tokens[i] = i < kept ? segment.draft[i] : segment.choice[kept];
    // The token at i is the (i + 1)th from here: it may end the request when nothing is owed after the i before it.
    result.ended = i >= segment.min_tokens_left && is_end(segment, tokens[i]);
  }
  result.accepted = std::min(result.committed, kept);
  result.exhausted = result.committed == segment.budget && !result.ended;
  return result;
}

}  // namespace

void accept(Stream& stream, std::span<const AcceptSegment> segments, std::span<AcceptResult> results, int32_t* tokens,
            int32_t stride) {
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "accept: this build has no CUDA kernel for it");
  VOLLEY_CHECK_EQ(segments.size(), results.size());
  // A few comparisons for each slot: waking the pool would cost more.
  for (size_t i = 0; i < segments.size(); ++i) {
    VOLLEY_CHECK_LT(segments[i].drafted, stride);
    results[i] = accept_one(segments[i], tokens + static_cast<int64_t>(i) * stride);
  }
}

}  // namespace volley::ops
