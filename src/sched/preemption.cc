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

// Takes pages for the coming rounds of every running request, the oldest first. A prompt that is being computed already
// has all of its pages but those of windows, which move along with it.
void Scheduler::State::reserve_ahead(StepPlan& plan) {
  for (auto next = running.begin(); next != running.end();) {
    Request& request = *next->second;
    const uint64_t age = request.age();
    if (!reserve(request, plan)) return;
    next = running.upper_bound(age);  // requests may have been preempted, this one too
  }
}

// Takes pages for the request; preempts another request, or this one, where they are short. False: preemption must wait
// for results.
bool Scheduler::State::reserve(Request& request, StepPlan& plan) {
  while (!cache.grow(request.resources().pages, need_of(request))) {
    if (!flights.empty()) {
      plan.waits = true;  // the victim may be in a step that still writes to its pages
      return false;
    }
    VOLLEY_CHECK_GT(running.size(), size_t{1});  // alone, a request that add() accepted has room
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

// The request to preempt: of the tenant that holds most, in bytes, one of the latest priority; of these, one of the
// group with most running requests; of these, the youngest. Never the oldest of all. A tie goes to the side with the
// youngest.
Request& Scheduler::State::victim() {
  std::map<std::string_view, int64_t> bytes;
  // running members of groups; requests without a group are not counted
  std::map<std::pair<std::string_view, uint64_t>, int32_t> members;
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

// Takes the tenant with most running requests, and of its requests of the latest priority the youngest; never the
// oldest of all. Null if no tenant whose turn is later has two more than `tenant`.
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

// Takes a slot from another tenant, because one that asks for little must not wait until one that asks for much is done
// with a slot. False: preemption must wait for the results under way.
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
  start(*next, plan);  // where pages are short, the tenant's request is next to start when there are enough
  return true;
}

void Scheduler::State::preempt(Request& request, StepPlan& plan) {
  vacate(request);
  shares.resume(request.id(), request.age());
  plan.preempted.push_back(request.id());
  ++preemptions;
}

// The pages first go to the cache, which then drops them: no request uses any.
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

// Takes back the slot and pages of a running request. The K and V that it computed stay cached as far as they fill
// pages; with recurrent layers they stay cached to their end, with a snapshot of the slot's state. state_moved_on: a
// step under way has moved the state past the known tokens.
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
  cache.keep(request.space(), request.computed_keys(), pages);
  // The request's own wanted snapshots may have been all there are. The cache owns them now, and one at the end is
  // worth more than the first of them.
  if (ends_anew && !saved && save_end()) cache.keep(request.space(), request.computed_keys(), pages);
}

}  // namespace volley::sched
