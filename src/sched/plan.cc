#include <algorithm>
#include <vector>

#include "base/check.h"
#include "sched/state.h"

namespace volley::sched {
namespace {

// Shares `rows` out over requests that want `wanted[i]` each, one at a time in turn: the first drafted tokens of a
// block are the likeliest to be accepted, so a row is worth most where the block is still short.
std::vector<int32_t> share_rows(std::span<const int32_t> wanted, int32_t rows) {
  std::vector<int32_t> given(wanted.size());
  for (bool progress = true; progress && rows > 0;) {
    progress = false;
    for (size_t i = 0; i < wanted.size() && rows > 0; ++i) {
      if (given[i] == wanted[i]) continue;
      ++given[i];
      --rows;
      progress = true;
    }
  }
  return given;
}

}  // namespace

StepPlan Scheduler::State::plan(int32_t max_draft) {
  VOLLEY_CHECK_LT(std::ssize(flights), config.reserve_rounds);
  VOLLEY_CHECK_GE(max_draft, 0);
  VOLLEY_CHECK_LT(max_draft, config.block_size);
  StepPlan plan;
  reserve_for_decoding(plan);
  if (plan.waits) return plan;
  plan_decoding(max_draft, plan);
  plan_prefill(plan);
  // What a preemption freed is for those that run. A victim whose prompt someone else entered into the tree meanwhile
  // might fit again at once; it waits a step, so that no plan both takes a request's slot and gives it one.
  if (plan.preempted.empty()) admit(max_draft, plan);
  publish_pages(plan);
  VOLLEY_CHECK_LE(plan.rows, config.max_num_batched_tokens);
  VOLLEY_CHECK(!plan.empty() || requests.empty() || !flights.empty());  // something can always run
  if (plan.empty()) return plan;
  for (const PlannedSegment& segment : plan.segments) {
    known(segment.id).take_off(segment.decodes ? 0 : segment.known, segment.chooses);
  }
  flights.push_back(plan.segments);
  return plan;
}

// Rows that drafts leave to prompts while some are there to be computed: speculation must not keep a new request
// waiting.
int32_t Scheduler::State::rows_for_prompts(int32_t decoding) const {
  const auto prefilling = [](const auto& entry) { return !entry.second->decodes_next(); };
  const bool wanted = std::ranges::any_of(running, prefilling) || (!queue.empty() && !slots.empty());
  const int32_t spare = config.max_num_batched_tokens - decoding;
  return wanted ? std::min({config.prefill_chunk, spare, std::max(1, spare / 2)}) : 0;
}

// One row for each decoding request, then drafted ones as far as the rows go.
void Scheduler::State::plan_decoding(int32_t max_draft, StepPlan& plan) {
  std::vector<Request*> decoding;
  for (const auto& [arrival, request] : running) {
    if (request->decodes_next() && request->remaining_next() > 0) decoding.push_back(request);
  }
  std::ranges::sort(decoding, {}, [](const Request* request) { return request->slot(); });
  std::vector<int32_t> wanted;
  for (const Request* request : decoding) wanted.push_back(draft_of(*request, max_draft));
  const auto count = static_cast<int32_t>(decoding.size());
  const auto given = share_rows(wanted, config.max_num_batched_tokens - count - rows_for_prompts(count));
  for (size_t i = 0; i < decoding.size(); ++i) add_segment(*decoding[i], given[i], 1 + given[i], plan);
}

int32_t Scheduler::State::draft_of(const Request& request, int32_t max_draft) {
  return request.speculation() ? std::min(max_draft, request.remaining_next() - 1) : 0;
}

void Scheduler::State::plan_prefill(StepPlan& plan) {
  for (const auto& [arrival, request] : running) {
    if (rows_left(plan) == 0) return;
    if (!request->decodes_next()) add_segment(*request, 0, rows_left(plan), plan);
  }
}

// Plans the next rows of a running request: a chunk of its prefill, or its last token and `draft` drafted ones.
void Scheduler::State::add_segment(Request& request, int32_t draft, int32_t most_rows, StepPlan& plan) const {
  PlannedSegment segment{.id = request.id(), .slot = request.slot(), .start = request.next_row()};
  if (request.decodes_next()) {
    segment.known = 1;
    segment.draft = draft;
    segment.chooses = segment.decodes = true;
  } else {
    segment.known = std::min({config.prefill_chunk, most_rows, request.prefill_length() - segment.start});
    segment.chooses = segment.start + segment.known == request.length();
  }
  VOLLEY_CHECK_LE(segment.known + segment.draft, most_rows);
  plan.rows += segment.known + segment.draft;
  plan.segments.push_back(segment);
}

void Scheduler::State::publish_pages(StepPlan& plan) {
  for (const auto& [arrival, request] : running) {
    Resources& resources = request->resources();
    const auto pages = resources.pages.view();
    for (size_t i = resources.published; i < pages.size(); ++i) {
      plan.page_edits.push_back({.slot = resources.slot.id(), .index = static_cast<int32_t>(i), .page = pages[i]});
    }
    resources.published = pages.size();
  }
}

}  // namespace volley::sched
