#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "sched/reservation.h"
#include "sched/state.h"

namespace volley::sched {

// Pages for the coming rounds of every running request, the oldest first. A prompt that is being computed has all of
// its pages but those of windows, which move along with it.
void Scheduler::State::reserve_ahead(StepPlan& plan) {
  for (auto next = running.begin(); next != running.end();) {
    Request& request = *next->second;
    const uint64_t age = request.age();
    if (!reserve(request, plan)) return;
    next = running.upper_bound(age);  // some may have gone, this one too
  }
}

// Somebody may have to go for it, or it goes itself. False: that must wait.
bool Scheduler::State::reserve(Request& request, StepPlan& plan) {
  while (!cache.grow(request.resources().pages, need_of(request))) {
    if (!flights.empty()) {
      plan.waits = true;  // whoever would have to go may be in a step that still writes to its pages
      return false;
    }
    VOLLEY_CHECK_GT(running.size(), size_t{1});  // alone, a request that add() let in has room
    Request& loser = victim();
    preempt(loser, plan);
    if (&loser == &request) return true;
  }
  return true;
}

kv::Need Scheduler::State::need_of(const Request& request) const {
  if (request.prefilling()) return need_to_start(request, request.computed());
  kv::Need need;
  need.computed = request.computed();
  need.ahead = positions_ahead(config);
  need.positions = need.computed + need.ahead;
  return need;
}

// Who loses its pages: of the tenant that holds most, in bytes, one of the latest priority; of these, one of the group
// with most requests that run; of these, the youngest. Never the oldest of all. A tie goes to the side with the
// youngest.
Request& Scheduler::State::victim() {
  std::map<std::string_view, int64_t> bytes;
  std::map<std::pair<std::string_view, uint64_t>, int32_t> members;  // of groups; one without is counted nowhere
  for (const auto& [age, request] : running) {
    const RequestTraits& traits = request->traits();
    bytes[traits.tenant] += cache.bytes(request->resources().pages);
    if (traits.group != 0) ++members[{traits.tenant, traits.group}];
  }
  using Claim = std::tuple<int64_t, int32_t, int32_t>;
  const auto claim = [&](const Request& request) -> Claim {
    const RequestTraits& traits = request.traits();
    const auto group = members.find({traits.tenant, traits.group});
    return {bytes[traits.tenant], traits.priority, group != members.end() ? group->second : 1};
  };
  Request* loser = running.rbegin()->second;
  for (auto next = std::next(running.rbegin()); next != std::prev(running.rend()); ++next) {
    if (claim(*next->second) > claim(*loser)) loser = next->second;
  }
  return *loser;
}

Request* Scheduler::State::next_to_start() {
  const SharedPrompts shared = shared_prompts();
  FairShares::Turns turns(shares);
  while (const auto id = turns.next()) {
    Request& request = known(*id);
    if (!request.running() && !shared.will_bring(request)) return &request;
  }
  return nullptr;
}

// One of the latest priority of the tenant with most requests that run, then the youngest; never the oldest of all.
// Null: no tenant that comes after this one has two more than it.
Request* Scheduler::State::who_gives_a_slot(const std::string& tenant) {
  std::map<std::string_view, int32_t> running_of;
  for (const auto& [age, request] : running) ++running_of[request->traits().tenant];
  const auto claim = [&](const Request& request) {
    return std::pair(running_of[request.traits().tenant], request.traits().priority);
  };
  Request* loser = nullptr;
  for (auto next = running.rbegin(); next != std::prev(running.rend()); ++next) {
    Request& request = *next->second;
    const std::string& other = request.traits().tenant;
    if (running_of[other] < running_of[tenant] + 2 || !shares.before(tenant, other)) continue;
    if (loser == nullptr || claim(request) > claim(*loser)) loser = &request;
  }
  return loser;
}

// A tenant that asks for little must not wait until one that asks for much is done with a slot. False: it must wait for
// the results under way.
bool Scheduler::State::share_slots(StepPlan& plan) {
  if (!slots.empty() || !shares.several_tenants() || shares.waiting() == 0) return true;
  Request* next = next_to_start();
  if (next == nullptr) return true;
  Request* loser = who_gives_a_slot(next->traits().tenant);
  if (loser == nullptr) return true;
  if (!flights.empty()) {
    plan.waits = true;  // the loser may be in a step that still writes to its pages
    return false;
  }
  preempt(*loser, plan);
  start(*next, plan);  // where pages are short, it is next when there are
  return true;
}

void Scheduler::State::preempt(Request& request, StepPlan& plan) {
  vacate(request);
  shares.resume(request.id(), request.age());
  plan.preempted.push_back(request.id());
  ++preemptions;
}

// Pages first go to the cache, which then forgets them: nobody uses any.
void Scheduler::State::restart() {
  flights.clear();
  while (!running.empty()) {
    Request& request = *running.begin()->second;
    vacate(request, true);
    shares.resume(request.id(), request.age());
  }
  copies.clear();
  later_copies.clear();
  cache.drop_prefixes();
}

// A running request gives back what it holds; the K and V that it computed stay cached as far as they fill pages, and
// where there are recurrent layers to their end, with the state that the slot is left in. state_moved_on: a step that
// is under way has taken that further than the tokens that are known.
void Scheduler::State::vacate(Request& request, bool state_moved_on, Prefix prefix) {
  if (prefix == Prefix::kKept) keep_prefix(request, state_moved_on);
  running.erase(request.age());
  request.stop();
}

void Scheduler::State::keep_prefix(Request& request, bool state_moved_on) {
  kv::Lease& pages = request.resources().pages;
  const auto save_end = [&] {
    const auto snapshot = cache.snapshot(pages, request.computed(), kv::SnapshotKind::kEnd, kv::SnapshotPlace::kWanted);
    if (!snapshot) return false;
    copies.push_back(
        {.kind = MemoryCopy::Kind::kSave, .slot = request.slot(), .group = 0, .from = {}, .to = *snapshot});
    return true;
  };
  const bool ends_anew = !state_moved_on && request.computed() > std::max(pages.cached(), pages.last_snapshot());
  const bool saved = ends_anew && save_end();
  cache.keep(request.space(), request.computed_tokens(), pages);
  // Its own wanted ones may have been all there are. They are the cache's now, and the end is worth more than the first
  // of them.
  if (ends_anew && !saved && save_end()) cache.keep(request.space(), request.computed_tokens(), pages);
}

}  // namespace volley::sched
