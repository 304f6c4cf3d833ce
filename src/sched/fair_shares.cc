#include "sched/fair_shares.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace volley::sched {

void FairShares::add(RequestId id, const RequestTraits& traits, int64_t rows) {
  Tenant& tenant = tenant_named(traits.tenant);
  ++tenant.requests;
  double before = 0;
  if (traits.group != 0) before = tenant.groups[traits.group].finish;
  const Rank rank{.priority = traits.priority,
                  .fresh = true,
                  .finish = tenant.clock.finish(before, rows + kSlotRows),
                  .order = arrivals_++};
  if (traits.group != 0) {
    Group& group = tenant.groups[traits.group];
    group.finish = rank.finish;
    ++group.requests;
  }
  const auto [entry, inserted] =
      entries_.try_emplace(id, Entry{.tenant = &tenant, .group = traits.group, .rank = rank, .rows = rows});
  VOLLEY_CHECK(inserted);
  enter(id, entry->second, tenant.waiting);
}

void FairShares::start(RequestId id, int64_t rows) {
  Entry& entry = entries_.at(id);
  Tenant& tenant = *entry.tenant;
  VOLLEY_CHECK(entry.queue == &tenant.waiting);
  // Joins the new queue before it leaves the old one, so the clock of a tenant that always competes is never reset.
  tenant.prefilling.emplace(entry.rank, id);
  tenant.waiting.erase(entry.rank);
  entry.queue = &tenant.prefilling;
  --waiting_;
  if (!entry.rank.fresh) return;
  tenant.spent += kSlotRows;
  tenant.clock.advance(kSlotRows + std::max<int64_t>(entry.rows - rows, 0));  // cached rows need not be computed
}

void FairShares::computed(RequestId id) {
  Entry& entry = entries_.at(id);
  VOLLEY_CHECK(entry.queue == &entry.tenant->prefilling);
  leave(entry);
}

void FairShares::resume(RequestId id, uint64_t age) {
  Entry& entry = entries_.at(id);
  VOLLEY_CHECK(entry.queue != &entry.tenant->waiting);
  if (entry.queue != nullptr) leave(entry);
  entry.rank.fresh = false;
  entry.rank.finish = 0;
  entry.rank.order = age;
  enter(id, entry, entry.tenant->waiting);
}

void FairShares::remove(RequestId id) {
  const auto found = entries_.find(id);
  VOLLEY_CHECK(found != entries_.end());
  Entry& entry = found->second;
  Tenant& tenant = *entry.tenant;
  const bool given_up = entry.queue != nullptr;
  double finish = entry.rank.finish;
  bool last = true;
  if (entry.group != 0) {
    const auto group = tenant.groups.find(entry.group);
    finish = group->second.finish;
    last = --group->second.requests == 0;
    if (last) tenant.groups.erase(group);
  }
  // A request that ended early stays on the clock for as long as equal parts would have taken. Work given up does not.
  if (given_up && last) tenant.clock.forget(finish);
  if (given_up) leave(entry);
  --tenant.requests;
  entries_.erase(found);
}

void FairShares::spend(RequestId id, int64_t rows) {
  Entry& entry = entries_.at(id);
  Tenant& tenant = *entry.tenant;
  VOLLEY_CHECK(entry.queue != &tenant.waiting);
  tenant.spent += rows;
  if (entry.queue != nullptr && entry.rank.fresh) tenant.clock.advance(rows);
}

void FairShares::end_step() {
  std::optional<int64_t> least;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.competes()) least = std::min(least.value_or(tenant.spent), tenant.spent);
  }
  floor_ = std::max(floor_, least.value_or(floor_));
}

FairShares::Tenant& FairShares::tenant_named(const std::string& name) {
  const auto found = tenants_.find(name);
  if (found != tenants_.end()) return found->second;
  // A new tenant is treated like one that was away for long, so those entries need not be kept.
  const auto away = [](const auto& named) { return named.second.requests == 0; };
  std::erase_if(tenants_, [&](const auto& named) { return away(named) && named.second.spent <= floor_ - credit_; });
  // Tenants that come once spend too little to move the floor. The one that spent least differs least from a new one.
  if (std::ranges::count_if(tenants_, away) >= kMostAway) {
    const auto spent = [&](const auto& named) {
      return away(named) ? named.second.spent : std::numeric_limits<int64_t>::max();
    };
    tenants_.erase(std::ranges::min_element(tenants_, {}, spent));
  }
  return tenants_[name];
}

void FairShares::enter(RequestId id, Entry& entry, Ranks& queue) {
  Tenant& tenant = *entry.tenant;
  if (!tenant.competes()) tenant.spent = std::clamp(tenant.spent, floor_ - credit_, floor_ + credit_);
  VOLLEY_CHECK(queue.emplace(entry.rank, id).second);
  entry.queue = &queue;
  waiting_ += &queue == &tenant.waiting ? 1 : 0;
}

void FairShares::leave(Entry& entry) {
  Tenant& tenant = *entry.tenant;
  waiting_ -= entry.queue == &tenant.waiting ? 1 : 0;
  VOLLEY_CHECK_EQ(entry.queue->erase(entry.rank), size_t{1});
  entry.queue = nullptr;
  if (!tenant.competes()) tenant.clock.clear();
}

FairShares::Turns::Turns(const FairShares& shares) {
  for (const auto& [name, tenant] : shares.tenants_) {
    if (tenant.competes()) {
      turns_.push_back({&tenant, 0, tenant.waiting.begin(), tenant.prefilling.begin()});
    }
  }
}

bool FairShares::Turns::done(const Turn& turn) const {
  return turn.prefilling == turn.tenant->prefilling.end() &&
         (pass_waiting_ || turn.waiting == turn.tenant->waiting.end());
}

std::optional<RequestId> FairShares::Turns::next() {
  const auto spent = [](const Turn& turn) { return turn.tenant->spent + turn.spent; };
  last_ = nullptr;
  for (Turn& turn : turns_) {
    if (!done(turn) && (last_ == nullptr || spent(turn) < spent(*last_))) last_ = &turn;
  }
  if (last_ == nullptr) return std::nullopt;
  const Tenant& tenant = *last_->tenant;
  const bool waits = !pass_waiting_ && last_->waiting != tenant.waiting.end() &&
                     (last_->prefilling == tenant.prefilling.end() || last_->waiting->first < last_->prefilling->first);
  // Advances the iterator first, because the caller may move this request to another queue.
  return waits ? (last_->waiting++)->second : (last_->prefilling++)->second;
}

void FairShares::Turns::spend(int64_t rows) {
  VOLLEY_CHECK(last_ != nullptr);
  last_->spent += rows;
}

}  // namespace volley::sched
