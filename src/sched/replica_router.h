// Which replica a request goes to: arithmetic only, no thread, no clock. Threads: one at a time.
//
// The rule. A request goes where the longest part of its prompt is cached, if that saves rows worth having and the
// replica is not much busier; else to the one with the least work outstanding.
//   saved: rows that it need not compute there, against the replica with the least work. Worth having: at least a page
//          and a kLeastShare-th of the prompt, so that an opening that all prompts have in common sends nobody.
//   work:  of open requests, the prompt rows to compute and the tokens to make. max_tokens is a bound that most do not
//          reach: kMostExpected tokens of it count at most.
//   much busier: its work is more than kBusier times the least, and beside it kWorthOfRow times `saved` and kWorthOfOwn
//          times the request's own: who comes to a few others runs along with them, and what is left behind is computed
//          a second time and cached twice.
// Replicas that are away (they load their models again) get nobody as long as another one is there.
//
// Cached is what the replica's events say (volley/cache_events.h), and the prompts of its open requests: who comes
// while the same prompt is being computed follows it. Pages of a request that has ended count until the replica's next
// news, which tells what of it is kept.
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
    std::vector<uint64_t> pages;         // kv::page_hashes() of the prompt; empty: nothing can be reused
  };
  // Chooses, and counts the request there until ended(). REQUIRES: the id is not open.
  size_t add(Arrival arrival);
  // The request committed tokens: its prompt is computed. Ids that are not open are ignored, here and below.
  void progressed(RequestId id, int64_t tokens);
  void ended(RequestId id) noexcept;
  // What the replica's prefix cache became, including that of every request that ended before.
  void published(size_t replica, std::span<const CacheEvent> events);
  void set_available(size_t replica, bool available);

  bool has(RequestId id) const { return open_.contains(id); }
  size_t replica_of(RequestId id) const { return open_.at(id).replica; }  // REQUIRES: has(id)
  int64_t work(size_t replica) const { return replicas_[replica].work; }
  int64_t requests(size_t replica) const { return replicas_[replica].requests; }  // open ones
  bool idle() const { return open_.empty(); }

 private:
  struct Open {
    size_t replica = 0;
    int64_t rows = 0, tokens = 0;  // to do
    std::vector<uint64_t> pages;
  };
  struct Replica {
    kv::CacheIndex cached;
    std::unordered_map<uint64_t, int32_t> under_way;  // pages of requests, by how many have them
    std::vector<std::vector<uint64_t>> ended;         // pages of requests that ended since the last news
    int64_t work = 0, requests = 0;
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
