// Chooses the replica of each request: arithmetic only, no thread, no clock. Threads: one at a time.
//
// The rule. A request goes where the longest part of its prompt is cached, if that saves rows worth having and the
// replica is not much busier; else to the one with the least work outstanding.
//   saved: rows that it need not compute there, against the replica with the least work. Worth having: at least a page
//          and a kLeastShare-th of the prompt, so that an opening that all prompts have in common decides nothing.
//   work:  of open requests, the prompt rows to compute and the tokens to make. max_tokens is a bound that most do not
//          reach: kMostExpected tokens of it count at most.
//   much busier: its work is more than kBusier times the least, and beside it kWorthOfRow times `saved` and kWorthOfOwn
//          times the request's own: a request that joins a few others runs along with them, but a prefix that it leaves
//          behind is computed a second time and cached twice.
// Replicas that are away (reloading their models) get no requests as long as another one is available.
//
// Pages count as cached if the replica's events say so (volley/cache_events.h) or if they are of the prompt of an open
// request: a request that arrives while the same prompt is being computed goes to the same replica. Pages of a request
// that has ended count until the replica's next events, which say which of them are kept.
#pragma once

#include <volley/cache_events.h>
#include <volley/engine.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/cache_index.h"

namespace volley::sched {

class ReplicaRouter {
 public:
  static constexpr int64_t kLeastShare = 4;
  static constexpr int64_t kMostExpected = 512;
  static constexpr double kBusier = 1.5;
  static constexpr int64_t kWorthOfRow = 2;
  static constexpr int64_t kWorthOfOwn = 4;

  ReplicaRouter(size_t replicas, int32_t page_size);

  struct Arrival {
    RequestId id = 0;
    int64_t prompt = 0, max_tokens = 0;  // tokens
    std::vector<uint64_t> pages;         // kv::page_hashes() of the prompt; empty: no page can be reused
  };
  // Chooses, and counts the request there until ended(). REQUIRES: the id is not open.
  size_t add(Arrival arrival);
  // The request committed tokens: its prompt is computed. Ids that are not open are ignored, here and below.
  void progressed(RequestId id, int64_t tokens);
  void ended(RequestId id);
  // Events of the replica's prefix cache, including those of every request that ended before.
  void published(size_t replica, std::span<const CacheEvent> events);
  void set_available(size_t replica, bool available);

  bool has(RequestId id) const { return open_.contains(id); }
  size_t replica_of(RequestId id) const { return open_.at(id).replica; }  // REQUIRES: has(id)
  int64_t work(size_t replica) const { return replicas_[replica].work; }
  bool idle() const { return open_.empty(); }

 private:
  struct Open {
    size_t replica = 0;
    int64_t rows = 0, tokens = 0;  // work still to do
    std::vector<uint64_t> pages;
  };
  struct Replica {
    kv::CacheIndex cached;
    std::unordered_map<uint64_t, int32_t> under_way;  // pages of open requests, and how many have each
    std::vector<std::vector<uint64_t>> ended;         // pages of requests that ended since the last events
    int64_t work = 0;
    uint64_t sent = 0;  // requests so far
    bool available = true;
  };

  size_t choose(const Arrival& arrival) const;
  bool usable(const Replica& replica) const { return replica.available || none_available_; }
  int64_t cached_rows(const Replica& replica, const Arrival& arrival) const;
  void release(Replica& replica, std::span<const uint64_t> pages);

  const int32_t page_size_;
  std::vector<Replica> replicas_;
  std::unordered_map<RequestId, Open> open_;
  bool none_available_ = false;
};

}  // namespace volley::sched
