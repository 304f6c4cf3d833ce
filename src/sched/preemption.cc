#include <algorithm>
#include <vector>

#include "base/check.h"
#include "sched/reservation.h"
#include "sched/state.h"

namespace volley::sched {

// Pages for the coming rounds of every decoding request, the oldest first: when they run out it is the youngest that
// goes, and no one that this pass has served already. (Prefill needs none: admission took all of its pages.)
void Scheduler::State::reserve_for_decoding(StepPlan& plan) {
  for (auto next = running.begin(); next != running.end(); ++next) {
    Request& request = *next->second;
    if (!request.decodes_next()) continue;
    if (!flights.empty() && !reclaim(missing_pages(request))) {
      plan.waits = true;  // whoever would have to go may be in a step that still writes to its pages
      return;
    }
    if (!reserve(request, plan)) return;  // it was the youngest
  }
}

// False when the request itself had to go.
bool Scheduler::State::reserve(Request& request, StepPlan& plan) {
  const int64_t missing = missing_pages(request);
  while (!reclaim(missing)) {
    Request& youngest = *running.rbegin()->second;
    VOLLEY_CHECK_GT(running.size(), size_t{1});  // alone, a request that add() let in has room
    preempt(youngest, plan);
    if (&youngest == &request) return false;
  }
  if (missing > 0) {
    kv::PageList& pages = request.resources().pages;
    pages.grow_to(pages.size() + static_cast<size_t>(missing));
  }
  return true;
}

int64_t Scheduler::State::missing_pages(const Request& request) const {
  return reserved_pages(config, request.computed()) - static_cast<int64_t>(request.resources().pages.size());
}

void Scheduler::State::preempt(Request& request, StepPlan& plan) {
  vacate(request);
  queue.emplace(request.arrival(), &request);
  plan.preempted.push_back(request.id());
  ++preemptions;
}

// Makes `pages` pages free at the cost of cached ones only. False, and nothing evicted, when that does not suffice.
bool Scheduler::State::reclaim(int64_t pages) {
  const int64_t missing = pages - pool.free();
  if (missing <= 0) return true;
  if (missing > tree.evictable()) return false;
  VOLLEY_CHECK_EQ(tree.evict(missing), missing);
  return true;
}

// A running request gives back what it holds; the K and V that it computed stay cached as far as they fill pages.
void Scheduler::State::vacate(Request& request) {
  if (config.prefix_cache) cache_pages(request);
  running.erase(request.arrival());
  request.stop();
}

// Enters the full pages of computed tokens into the tree. They are never written again: the next row goes behind them.
void Scheduler::State::cache_pages(Request& request) {
  const size_t full = static_cast<size_t>(request.computed() / config.page_size);
  Resources& resources = request.resources();
  const auto own = resources.pages.first(full);
  const std::vector<PageId> before(own.begin(), own.end());
  tree.insert(request.space(), request.tokens().first(full * static_cast<size_t>(config.page_size)), own);
  const auto moved = static_cast<size_t>(std::ranges::mismatch(before, own).in1 - before.begin());
  if (moved < full) resources.published = std::min(resources.published, moved);
}

}  // namespace volley::sched
