// Which prompts are being computed that others wait for: the choices of one request (`n` of them) have one prompt, and
// its pages and states are computed once. Arithmetic only. Threads: one.
//
// The first choice that starts computes the prompt; the others stay in the queue until it lies in the prefix cache as
// far as they can take it, up to the page that its last row is in. While they wait they hold nothing and keep nobody
// behind them waiting, and who they wait for runs: so the wait lasts no longer than that one prompt takes. If it goes
// before that (cancelled, late, failed, preempted), the next of them in turn computes the prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sched/request.h"

namespace volley::sched {

// Leading tokens of a prompt that others with the same one can take from the cache: its last row chooses, so each
// computes that, and pages are shared as a whole.
inline int32_t shared_length(const Request& request, int32_t page_size) {
  return (request.prompt_length() - 1) / page_size * page_size;
}

class SharedPrompts {
 public:
  explicit SharedPrompts(int32_t page_size) : page_size_(page_size) {}

  // A request that runs, or is about to.
  void add(const Request& request) {
    if (shares(request) && request.computed() < shared_length(request, page_size_)) computed_.push_back(&request);
  }

  // Whether somebody computes what this one will then find in the cache. Goes by hashes, because a step asks for every
  // choice that waits: one of another prompt with the same hash would wait for nothing, and then run.
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
