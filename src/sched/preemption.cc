#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "sched/reservation.h"
#include "sched/state.h"

namespace volley::sched {

// Pages for the coming rounds of every decoding request, the oldest first. (Prefill needs none: admission took all of
// its pages.)
void Scheduler::State::reserve_for_decoding(StepPlan& plan) {
  for (auto next = running.begin(); next != running.end();) {
    Request& request = *next->second;
    const uint64_t age = request.age();
    if (request.decodes_next()) {
      if (!flights.empty() && !reclaim(missing_pages(request))) {
        plan.waits = true;  // whoever would have to go may be in a step that still writes to its pages
        return;
      }
      reserve(request, plan);
    }
    next = running.upper_bound(age);  // some may have gone, this one too
  }
}

// Somebody may have to go for it, or it goes itself.
void Scheduler::State::reserve(Request& request, StepPlan& plan) {
  const int64_t missing = missing_pages(request);
  while (!reclaim(missing)) {
    VOLLEY_CHECK_GT(running.size(), size_t{1});  // alone, a request that add() let in has room
    Request& loser = victim();
    preempt(loser, plan);
    if (&loser == &request) return;
  }
  if (missing > 0) {
    kv::PageList& pages = request.resources().pages;
    pages.grow_to(pages.size() + static_cast<size_t>(missing));
  }
}

// Who loses its pages: of the tenant that holds most of them, one of the latest priority; of these, one of the group
// with most requests that run; of these, the youngest. Never the oldest of all. A tie goes to the side with the
// youngest.
Request& Scheduler::State::victim() {
  std::map<std::string_view, size_t> pages;
  std::map<std::pair<std::string_view, uint64_t>, int32_t> members;  // of groups; one without is counted nowhere
  for (const auto& [age, request] : running) {
    const RequestTraits& traits = request->traits();
    pages[traits.tenant] += request->resources().pages.size();
    if (traits.group != 0) ++members[{traits.tenant, traits.group}];
  }
  using Claim = std::tuple<size_t, int32_t, int32_t>;
  const auto claim = [&](const Request& request) -> Claim {
    const RequestTraits& traits = request.traits();
    const auto group = members.find({traits.tenant, traits.group});
    return {pages[traits.tenant], traits.priority, group != members.end() ? group->second : 1};
  };
  Request* loser = running.rbegin()->second;
  for (auto next = std::next(running.rbegin()); next != std::prev(running.rend()); ++next) {
    if (claim(*next->second) > claim(*loser)) loser = next->second;
  }
  return *loser;
}

int64_t Scheduler::State::missing_pages(const Request& request) const {
  return reserved_pages(config, request.computed()) - static_cast<int64_t>(request.resources().pages.size());
}

void Scheduler::State::preempt(Request& request, StepPlan& plan) {
  vacate(request);
  shares.resume(request.id(), request.age());
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
  running.erase(request.age());
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
