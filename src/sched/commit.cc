#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sched/state.h"

namespace volley::sched {

void Scheduler::State::apply(std::span<const StepResult> results) {
  std::unordered_map<RequestId, const StepResult*> by_request;
  for (const StepResult& result : results) {
    VOLLEY_CHECK_MSG(by_request.emplace(result.id, &result).second, "two results of " + std::to_string(result.id));
  }
  VOLLEY_CHECK(!flights.empty() || results.empty());
  if (flights.empty()) return;  // the plan was empty
  const std::vector<PlannedSegment> segments = std::move(flights.front());
  flights.pop_front();
  size_t used = 0;
  for (const PlannedSegment& segment : segments) {
    const StepResult* result = nullptr;
    if (segment.chooses) {
      const auto found = by_request.find(segment.id);
      VOLLEY_CHECK_MSG(found != by_request.end(), "no result of request " + std::to_string(segment.id));
      result = found->second;
      ++used;
    }
    finish_segment(segment, result);
  }
  VOLLEY_CHECK_EQ(used, results.size());  // its segment chose nothing, or was not planned
}

void Scheduler::State::forget(RequestId id) {
  for (std::vector<PlannedSegment>& flight : flights) {
    std::erase_if(flight, [id](const PlannedSegment& segment) { return segment.id == id; });
  }
}

// `result` is null for a chunk that chose nothing.
void Scheduler::State::finish_segment(const PlannedSegment& segment, const StepResult* result) {
  Request& request = known(segment.id);
  const bool prefilled = request.prefilling();
  request.land(segment.decodes ? 0 : segment.known, segment.chooses);
  if (result == nullptr) {
    request.advance(segment.known);
  } else {
    VOLLEY_CHECK_LE(static_cast<int64_t>(result->tokens.size()), int64_t{segment.draft} + 1);
    request.commit(result->tokens);
    VOLLEY_CHECK(result->finished || request.remaining() > 0);
    if (result->finished) {
      forget(segment.id);
      vacate(request, request.under_way() && !result->device_knows);
      shares.remove(segment.id);
      requests.erase(segment.id);
      return;
    }
  }
  if (prefilled && request.decoding()) shares.computed(segment.id);
  // The cache takes the pages now, not at the request's end: waiting requests with the same prompt share them.
  const int32_t shared = request.traits().shares_prompt ? shared_length(request, config.page_size) : request.length();
  if (prefilled && (request.decoding() || request.computed() >= shared)) {
    cache.keep(request.space(), request.computed_keys(), request.resources().pages);
  }
  cache.advance(request.space(), request.computed_keys(), request.resources().pages);
}

}  // namespace volley::sched
