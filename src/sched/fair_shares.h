// In which order prompts get the rows of a step, and requests slots. Arithmetic only. Threads: one.
//
// Tenants take turns: next is the one that has spent the least. A tenant spends a row for each prompt row and each
// decoding request of a step, and kSlotRows for each request that starts. Who comes back has spent at most
// `credit` rows less than those who stayed, however long it was away: a tenant that asks for less than its share is
// served almost as if it were alone, and keeps nobody waiting for more than `credit` rows beyond its share. Nor has it
// spent more than `credit` rows more, however long it decoded.
//
// Within a tenant lower priorities come first, then requests that were preempted, then the order in which prompts would
// end if all groups with prompts were served in equal parts, row by row (virtual_clock.h); within a group, the order of
// arrival. So short prompts end early, and many prompts of one group wait for each other and not others for them.
//
// Bound. Let a step take up to R prompt rows and C of one request, m be the longest prompt, all with kSlotRows for each
// request. While slots and pages suffice, a prompt of r rows of a single tenant, without priorities, ends at most
// m / C + r / C + 2 steps later than in equal parts: with n groups there at a time, and q rows of its own group up to
// its end, about n q / R steps after it came. Of T tenants that always ask each spends a T-th of what all spend, less
// `credit` and two steps at most. A priority is what it says: who has a later one waits for all earlier ones.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/request_traits.h"
#include "sched/virtual_clock.h"

namespace volley::sched {

class FairShares {
  // Where a request stands within its tenant.
  struct Rank {
    int32_t priority = 0;
    bool fresh = true;   // false: it was preempted
    double finish = 0;   // of a fresh one, on the tenant's clock
    uint64_t order = 0;  // of its arrival, or its age
    auto operator<=>(const Rank&) const = default;
  };
  using Ranks = std::map<Rank, RequestId>;
  struct Tenant;

 public:
  // A request counts for so many rows beside its prompt's: its slot, too, is something that others wait for.
  static constexpr int64_t kSlotRows = 16;

  explicit FairShares(int64_t credit) : credit_(credit) {}

  // The life of a request: add, start, computed, then resume, start and computed as often as it is preempted (which may
  // be before it is computed); remove at any time.
  void add(RequestId id, const RequestTraits& traits, int64_t rows);  // it waits; about so many are to be computed
  void start(RequestId id, int64_t rows);                             // it has a slot; so many are to be computed
  void computed(RequestId id);                                        // its prompt is: it wants no more of them
  void resume(RequestId id, uint64_t age);                            // it waits again; lower ages come first
  void remove(RequestId id);

  void spend(RequestId id, int64_t rows);  // it gets these in a step. REQUIRES: it has a slot
  void end_step();                         // after the last of them

  int64_t waiting() const { return waiting_; }
  void for_each_tenant(const std::function<void(const std::string& tenant, size_t waiting)>& tell) const {
    for (const auto& [name, tenant] : tenants_) tell(name, tenant.waiting.size());
  }
  // Whether the first one's turn is before the second one's. REQUIRES: both have requests.
  bool before(const std::string& tenant, const std::string& other) const {
    return tenants_.at(tenant).spent < tenants_.at(other).spent;
  }
  // Who was away for long is known until a new one comes.
  bool several_tenants() const { return tenants_.size() > 1; }

  // Who is next, of those that wait or compute their prompts, each once. While it is used requests may start and be
  // computed, and nothing else may change. The shares must outlive it.
  class Turns {
   public:
    explicit Turns(const FairShares& shares);
    std::optional<RequestId> next();
    void spend(int64_t rows);                      // next()'s last one would get these: its tenant's turn moves on
    void pass_waiting() { pass_waiting_ = true; }  // from now on only who runs

   private:
    struct Turn {
      const Tenant* tenant;
      int64_t spent;                              // in this plan
      Ranks::const_iterator waiting, prefilling;  // the next ones
    };
    bool done(const Turn& turn) const;

    std::vector<Turn> turns_;
    Turn* last_ = nullptr;
    bool pass_waiting_ = false;
  };

 private:
  struct Entry {
    Tenant* tenant = nullptr;
    uint64_t group = 0;
    Rank rank;
    int64_t rows = 0;        // to compute, as far as add() was told
    Ranks* queue = nullptr;  // its tenant's `waiting` or `prefilling`; null: it decodes
  };
  struct Group {
    double finish = 0;  // of its last request
    int64_t requests = 0;
  };
  struct Tenant {
    int64_t spent = 0;
    int64_t requests = 0;
    Ranks waiting, prefilling;
    std::unordered_map<uint64_t, Group> groups;
    VirtualClock clock;
    bool competes() const { return !waiting.empty() || !prefilling.empty(); }
  };
  using Tenants = std::map<std::string, Tenant>;

  Tenant& tenant_named(const std::string& name);
  void enter(RequestId id, Entry& entry, Ranks& queue);
  void leave(Entry& entry);

  const int64_t credit_;
  // What every tenant with something to compute has spent at least. It never falls; who comes is measured by it.
  int64_t floor_ = 0;
  uint64_t arrivals_ = 0;
  int64_t waiting_ = 0;
  Tenants tenants_;
  std::unordered_map<RequestId, Entry> entries_;
};

}  // namespace volley::sched
