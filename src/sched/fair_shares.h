// The order in which prompts get the rows of a step, and requests get slots. Arithmetic only. Threads: one.
//
// Tenants take turns: next is the one that has spent the least. A tenant spends a row for each prompt row and each
// decoding request of a step, and kSlotRows for each request that starts. A tenant that comes back is counted as having
// spent at most `credit` rows less than those that stayed, however long it was away. So a tenant that asks for less
// than its share is served almost as if it were alone, and delays the others by at most `credit` rows beyond its share.
// A tenant is counted as at most `credit` rows ahead as well, however long it decoded.
//
// Within a tenant lower priorities come first, then requests that were preempted, then the order in which prompts would
// end if all groups with prompts were served in equal parts, row by row (virtual_clock.h); within a group, the order of
// arrival. So short prompts end early, and many prompts of one group delay each other but no other group.
//
// Bound. Let a step take up to R prompt rows and C of one request, m be the longest prompt, all with kSlotRows for each
// request. While slots and pages suffice, a prompt of r rows of a single tenant, without priorities, ends at most m / C
// + r / C + 2 steps later than in equal parts: with n groups at a time, and q rows of its own group up to its end,
// about n q / R steps after it arrived. With T tenants that always have work, each spends at least a T-th of all rows,
// less `credit` and two steps. Priorities are strict: a request waits for all requests of its tenant with an earlier
// priority.
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
    double finish = 0;   // the finish time of a fresh request, on the tenant's clock
    uint64_t order = 0;  // order of its arrival, or its age
    auto operator<=>(const Rank&) const = default;
  };
  using Ranks = std::map<Rank, RequestId>;
  struct Tenant;

 public:
  // A request counts for so many rows beside its prompt's, because other requests wait for its slot too.
  static constexpr int64_t kSlotRows = 16;
  static constexpr ptrdiff_t kMostAway = 256;  // tenants without requests that are remembered

  explicit FairShares(int64_t credit) : credit_(credit) {}

  // The calls for a request: add, start, computed; then resume, start and computed each time it is preempted, which may
  // be before its prompt is computed; remove at any time.
  void add(RequestId id, const RequestTraits& traits, int64_t rows);  // it waits; about `rows` are to be computed
  void start(RequestId id, int64_t rows);   // the request has a slot; `rows` are to be computed
  void computed(RequestId id);              // the prompt is computed and needs no more rows
  void resume(RequestId id, uint64_t age);  // the request waits again; lower ages come first
  void remove(RequestId id);

  void spend(RequestId id, int64_t rows);  // the request gets `rows` in a step. REQUIRES: it has a slot
  void end_step();                         // after the step's last spend()

  int64_t waiting() const { return waiting_; }
  void for_each_tenant(const std::function<void(const std::string& tenant, size_t waiting)>& tell) const {
    for (const auto& [name, tenant] : tenants_) tell(name, tenant.waiting.size());
  }
  // Whether the turn of `tenant` comes before that of `other`. REQUIRES: both have requests.
  bool before(const std::string& tenant, const std::string& other) const {
    return tenants_.at(tenant).spent < tenants_.at(other).spent;
  }
  // Tenants that were away for long count until a new one arrives.
  bool several_tenants() const { return tenants_.size() > 1; }

  // The next requests in order, of those that wait or compute their prompts, each once. During the iteration requests
  // may start and be computed; nothing else may change. The shares must outlive this.
  class Turns {
   public:
    explicit Turns(const FairShares& shares);
    std::optional<RequestId> next();
    void spend(int64_t rows);  // the request of the last next() would get `rows`: its tenant's turn moves on
    void pass_waiting() { pass_waiting_ = true; }  // from now on next() returns running requests alone

   private:
    struct Turn {
      const Tenant* tenant;
      int64_t spent;                              // rows in this plan
      Ranks::const_iterator waiting, prefilling;  // the next candidates
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
    int64_t rows = 0;        // to compute, as passed to add()
    Ranks* queue = nullptr;  // its tenant's `waiting` or `prefilling`; null: it decodes
  };
  struct Group {
    double finish = 0;  // finish of the group's last request
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
  // The least that any tenant with prompts to compute has spent. It never falls; tenants that arrive are measured by
  // it.
  int64_t floor_ = 0;
  uint64_t arrivals_ = 0;
  int64_t waiting_ = 0;
  Tenants tenants_;
  std::unordered_map<RequestId, Entry> entries_;
};

}  // namespace volley::sched
