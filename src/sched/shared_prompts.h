// Tracks which prompts are being computed that other requests wait for: the `n` choices of one request have one prompt,
// whose pages and states are computed once. Arithmetic only. Threads: one.
//
// The first choice that starts computes the prompt. The others stay in the queue until the prefix cache has the prompt
// up to the page that its last row is in, which is as much as they can take. Waiting choices hold no pages and delay no
// request behind them. The choice that they wait for runs, so the wait lasts no longer than that one prompt takes. If
// that choice leaves early (cancelled, late, failed, preempted), the next choice in turn computes the prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sched/request.h"

namespace volley::sched {

// Leading tokens of a prompt that other requests with the same prompt can take from the cache. Pages are shared as a
// whole, and each request computes the last row itself because that row chooses its first token.
inline int32_t shared_length(const Request& request, int32_t page_size) {
  return (request.prompt_length() - 1) / page_size * page_size;
}

class SharedPrompts {
 public:
  explicit SharedPrompts(int32_t page_size) : page_size_(page_size) {}

  // Call for a request that runs, or is about to.
  void add(const Request& request) {
    if (shares(request) && request.computed() < shared_length(request, page_size_)) computed_.push_back(&request);
  }

  // Whether another request is computing the prompt that this one will then find in the cache. The check uses hashes,
  // because it is made for every waiting choice in every step: a choice of another prompt with the same hash would wait
  // without need, and then run.
  bool will_bring(const Request& request) const {
    if (!shares(request) || !request.reuses_prefix()) return false;
    return std::ranges::any_of(computed_, [&](const Request* other) {
      const RequestTraits &a = other->traits(), &b = request.traits();
      return a.group == b.group && a.priority == b.priority && a.tenant == b.tenant &&
             other->prompt_hash() == request.prompt_hash();
    });
  }

 private:
  static bool shares(const Request& request) {
    return request.traits().shares_prompt && request.traits().group != 0 && request.new_prompt();
  }

  int32_t page_size_;
  std::vector<const Request*> computed_;
};

}  // namespace volley::sched
