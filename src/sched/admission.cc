#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "sched/reservation.h"
#include "sched/state.h"

namespace volley::sched {

Status Scheduler::State::check_fits(int64_t prompt, int64_t max_tokens) const {
  const std::string asked =
      "The prompt's " + std::to_string(prompt) + " tokens and max_tokens = " + std::to_string(max_tokens);
  if (prompt + max_tokens > config.max_model_len) {
    return resource_exhausted(asked + " are more than the " + std::to_string(config.max_model_len) +
                              " tokens of a request (max_model_len): shorten the prompt or ask for fewer tokens.");
  }
  kv::Need need;
  need.positions = last_context(prompt, max_tokens) + positions_ahead(config);
  need.ahead = chunks_ahead(config);
  const int32_t group = cache.too_small(need);
  if (group < 0) return {};
  const kv::Group& short_of = config.groups[static_cast<size_t>(group)];
  const int64_t pages = kv::most_pages(short_of, need.positions, need.ahead, config.page_size);
  return resource_exhausted(asked + " need " + std::to_string(pages) + " pages of KV memory" +
                            (group > 0 ? " of sliding-window layers" : "") + ", and there are " +
                            std::to_string(short_of.pages) +
                            ": shorten the prompt, ask for fewer tokens or give the engine more KV pages.");
}

// A preempted request whose tokens were all still cached verifies in this step already.
void Scheduler::State::resume(Request& request, const VerifyLimit& limit, StepPlan& plan) {
  add_decoding(request, draft_of(request, limit.draft), plan);
  const auto place = std::ranges::find_if(plan.segments, [&](const PlannedSegment& other) {
    return !other.decodes || other.slot > request.slot() || other.id == request.id();
  });
  std::rotate(place, plan.segments.end() - 1, plan.segments.end());
  fit_drafts(limit, plan.decode_rows + rows_left(plan), plan);
}

// The last token's row is always computed: it chooses a token, or begins a verify step. A hit that would end inside an
// unbroken part ends before it.
kv::Lease Scheduler::State::cached_pages(const Request& request) {
  std::span<const kv::CacheKey> keys = request.keys().first(request.keys().size() - 1);
  for (;;) {
    kv::Lease pages = cache.open(request.space(), keys, request.reuses_prefix());
    const auto cut = std::ranges::find_if(request.unbroken(), [&](const auto& part) {
      return part.first < pages.cached() && pages.cached() < part.second;
    });
    if (cut == request.unbroken().end()) return pages;
    keys = keys.first(static_cast<size_t>(cut->first));
  }
}

// Pages for the whole prompt in groups that keep whole sequences; in windows, for the first chunks.
kv::Need Scheduler::State::need_to_start(const Request& request, int64_t cached) const {
  kv::Need need;
  need.computed = cached;
  need.positions = request.prefill_length() + positions_ahead(config);
  need.ahead = chunks_ahead(config);
  return need;
}

// Gives a waiting request a slot and the pages of its prefill and of the rounds after it, from free and cached pages
// only. Returns false, and changes nothing, when there are too few.
bool Scheduler::State::start(Request& request, StepPlan& plan) {
  if (slots.empty()) return false;
  kv::Lease pages = cached_pages(request);
  if (!cache.grow(pages, need_to_start(request, pages.cached()))) {
    // A hit inside a page holds the cached page and its copy at once. A request that runs alone may need every page, so
    // then it starts without the hit.
    if (!running.empty()) return false;
    pages = {};
    pages = cache.open(request.space(), {}, false);
    if (!cache.grow(pages, need_to_start(request, 0))) return false;
  }
  const auto cached = static_cast<int32_t>(pages.cached());

  if (!request.has_started()) request.set_age(starts++);
  running.emplace(request.age(), &request);
  const kv::Beginning beginning = pages.take_beginning();
  request.start(Resources{SlotLease(slots), std::move(pages)}, cached);
  shares.start(request.id(), request.prefill_length() - cached);
  if (request.decoding()) shares.computed(request.id());
  if (beginning.snapshot) {
    copies.push_back({.kind = MemoryCopy::Kind::kRestore,
                      .slot = request.slot(),
                      .group = 0,
                      .from = *beginning.snapshot,
                      .to = {}});
  }
  copies.insert(copies.end(), beginning.copies.begin(), beginning.copies.end());
  const auto context = static_cast<int32_t>(request.resources().pages.optional_from());
  plan.started.push_back({.id = request.id(), .slot = request.slot(), .start = cached, .draft_context = context});
  return true;
}

}  // namespace volley::sched
