// Work that waits for the same threads, in turns by client: a client with a hundred waiting requests delays each other
// client by one. Not thread-safe.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <utility>

#include "base/fair_space.h"

namespace volley::serve {

class Turns {
 public:
  using Work = std::function<void()>;
  // Running work, for done().
  struct Turn {
    Work work;  // null: no work may run now
    std::string whose{};
  };

  // `threads`: at least 2. One client's work gets at most all but one of them.
  explicit Turns(size_t threads) : running_({.total = threads, .share = threads - 1, .always = 1}) {}

  void add(const std::string& whose, Work work) {
    auto place = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.whose == whose; });
    if (place == queues_.end()) place = queues_.insert(place, {.whose = whose, .waiting = {}});
    place->waiting.push_back(std::move(work));
  }

  // The oldest work of the client that has waited longest for a turn. If there is none, call again after the next
  // done() or add(), which may free several.
  Turn next() {
    const auto first = find_next();
    if (first == queues_.end()) return {};
    Turn turn = {std::move(first->waiting.front()), first->whose};
    first->waiting.pop_front();
    running_.take(turn.whose);
    queues_.splice(queues_.end(), queues_, first);
    if (first->waiting.empty()) queues_.erase(first);
    return turn;
  }

  bool has_next() { return find_next() != queues_.end(); }

  void done(const Turn& turn) { running_.give_back(turn.whose); }

 private:
  struct Queue {
    std::string whose;
    std::deque<Work> waiting;  // not empty
  };
  std::list<Queue>::iterator find_next() {
    return std::find_if(queues_.begin(), queues_.end(),
                        [&](const Queue& q) { return running_.room(q.whose) == FairSpace::Room::kThere; });
  }

  FairSpace running_;
  std::list<Queue> queues_;  // the next turn first
};

}  // namespace volley::serve
