// Space that tenants share: places in a queue, bytes, files, threads. One rule for all of it. A tenant may hold at most
// `share` times what stays free for others, so a tenant that asks for little finds room however much others ask for
// (dynamic thresholds: Choudhury and Hahne, 1998). If space can be freed, the tenant that holds most gives some up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace volley {

// Arithmetic only. Threads: one.
class FairSpace {
 public:
  static constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();
  struct Limits {
    size_t total = kNoLimit;
    size_t share = 1;        // kNoLimit: a tenant may hold all
    size_t always = 0;       // a tenant may always hold this much if it is free
    size_t each = kNoLimit;  // no tenant may hold more
  };
  enum class Room { kThere, kNoneForAll, kNoneForOwner, kLeftToOthers };

  explicit FairSpace(const Limits& limits) : limits_(limits) {}
  const Limits& limits() const { return limits_; }
  void set_share(size_t share) { limits_.share = share; }

  size_t all() const { return all_; }
  size_t of(const std::string& tenant) const {
    const auto found = held_.find(tenant);
    return found != held_.end() ? found->second : 0;
  }
  // Whether the tenant may hold n more. There is always room for 0.
  Room room(const std::string& tenant, size_t n = 1) const {
    if (n == 0) return Room::kThere;
    const size_t free = limits_.total - std::min(all_, limits_.total);
    if (n > free) return Room::kNoneForAll;
    const size_t then = of(tenant) + n;
    if (then > limits_.each) return Room::kNoneForOwner;
    const bool fair = limits_.share == kNoLimit || then <= limits_.share * (free - n);
    return fair || then <= limits_.always ? Room::kThere : Room::kLeftToOthers;
  }

  // Counts n, whatever the limits are.
  void take(const std::string& tenant, size_t n = 1) {
    all_ += n;
    if (n > 0) held_[tenant] += n;
  }
  void take(const FairSpace& other) {  // held by all tenants together
    for (const auto& [tenant, held] : other.held_) take(tenant, held);
  }
  // n may exceed the tenant's own count if it was counted for another tenant.
  void give_back(const std::string& tenant, size_t n = 1) {
    all_ -= n;
    const auto found = held_.find(tenant);
    if (found != held_.end() && (found->second -= std::min(found->second, n)) == 0) held_.erase(found);
  }

  // The age of the oldest entry that a tenant can give up; lower is older. No value: it has none.
  using Oldest = std::function<std::optional<uint64_t>(const std::string& tenant)>;
  // If n more do not fit: the tenant that has to give something up. It is the tenant that would hold most if n counted
  // for `asking`; a tie goes to the one with the oldest entry. No value: only tenants that would hold less could make
  // room.
  std::optional<std::string> who_makes_room(const std::string& asking, size_t n, const Oldest& oldest) const {
    if (n > limits_.total) return std::nullopt;
    const std::string* most = &asking;
    size_t held = of(asking) + n;
    std::optional<uint64_t> age = oldest(asking);
    const bool others = room(asking, n) == Room::kNoneForAll;  // otherwise the tenant exceeds its share
    for (const auto& [tenant, own] : held_) {
      if (!others || tenant == asking || own < held) continue;
      const std::optional<uint64_t> its = oldest(tenant);
      if (!its || (own == held && age && *age < *its)) continue;
      most = &tenant;
      held = own;
      age = its;
    }
    return age ? std::optional(*most) : std::nullopt;
  }

 private:
  Limits limits_;
  size_t all_ = 0;
  std::map<std::string, size_t> held_;  // no zeros
};

// The same for any thread, with holds that return their space when destroyed. Must outlive its holds.
class SharedSpace {
 public:
  class Hold;

  explicit SharedSpace(const FairSpace::Limits& limits) : space_(limits) {}
  size_t all() const {
    const std::lock_guard lock(mutex_);
    return space_.all();
  }
  // Calls `oldest` while holding the lock.
  std::optional<std::string> who_makes_room(const std::string& asking, size_t n,
                                            const FairSpace::Oldest& oldest) const {
    const std::lock_guard lock(mutex_);
    return space_.who_makes_room(asking, n, oldest);
  }

 private:
  mutable std::mutex mutex_;
  FairSpace space_;  // guarded by mutex_
};

class SharedSpace::Hold {
 public:
  explicit Hold(SharedSpace& space) : space_(&space) {}
  ~Hold() { release(); }
  Hold(Hold&& other) noexcept
      : space_(other.space_), tenant_(std::move(other.tenant_)), held_(std::exchange(other.held_, 0)) {}
  Hold& operator=(Hold&&) = delete;

  const std::string& tenant() const { return tenant_; }
  size_t held() const { return held_; }
  // False: n does not fit in all. REQUIRES: the space belongs to the same tenant, and does not grow.
  bool grow_to(const std::string& tenant, size_t n) {
    const std::lock_guard lock(space_->mutex_);
    if (held_ == 0) tenant_ = tenant;
    if (space_->space_.room(tenant_, n - held_) != FairSpace::Room::kThere) return false;
    space_->space_.take(tenant_, n - std::exchange(held_, n));
    return true;
  }
  void release() {
    if (held_ == 0) return;
    const std::lock_guard lock(space_->mutex_);
    space_->space_.give_back(tenant_, std::exchange(held_, 0));
  }

 private:
  SharedSpace* space_;
  std::string tenant_;
  size_t held_ = 0;
};

}  // namespace volley
