// Work that waits for the same threads, in turns by whose it is: who has a hundred requests waiting delays each of the
// others by one. Not safe for threads.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <utility>

namespace volley::serve {

class Turns {
 public:
  using Work = std::function<void()>;

  // std::bad_alloc: nothing was added.
  void add(const std::string& whose, Work work) {
    const auto found = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.whose == whose; });
    if (found != queues_.end()) {
      found->waiting.push_back(std::move(work));
      return;
    }
    std::list<Queue> added(1);
    added.front().whose = whose;
    added.front().waiting.push_back(std::move(work));
    queues_.splice(queues_.end(), added);
  }

  // The oldest of whoever has waited longest for a turn. Null: nothing waits. Allocates nothing.
  Work next() {
    if (queues_.empty()) return nullptr;
    const auto first = queues_.begin();
    Work work = std::move(first->waiting.front());
    first->waiting.pop_front();
    if (first->waiting.empty()) {
      queues_.erase(first);
    } else {
      queues_.splice(queues_.end(), queues_, first);
    }
    return work;
  }

 private:
  struct Queue {
    std::string whose;
    std::deque<Work> waiting;  // never empty
  };
  std::list<Queue> queues_;  // the next turn first
};

}  // namespace volley::serve
