// Work that waits for the same threads, in turns by whose it is: who has a hundred requests waiting delays each of the
// others by one. There is a thread more than run one's work alone, for those who have none running: so nobody takes all
// threads. Not safe for threads.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <utility>

namespace volley::serve {

class Turns {
  struct Queue {
    std::string whose;
    std::deque<std::function<void()>> waiting;
    int running = 0;  // what neither waits nor runs is not here
  };

 public:
  using Work = std::function<void()>;
  // Work that runs, for done().
  struct Turn {
    Work work;  // null: there is none that may run now
    std::list<Queue>::iterator place{};
  };

  // `usual`: how many may run at once, beside the one more.
  explicit Turns(int usual) : usual_(usual) {}

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

  // The oldest of whoever has waited longest for a turn. Allocates nothing. Where there is none, it is to be called
  // again after the next done() or add(), after which there may be several.
  Turn next() {
    const auto first = find_next();
    if (first == queues_.end()) return {};
    Turn turn = {std::move(first->waiting.front()), first};
    first->waiting.pop_front();
    ++first->running;
    ++running_;
    queues_.splice(queues_.end(), queues_, first);
    return turn;
  }

  bool has_next() { return find_next() != queues_.end(); }

  void done(const Turn& turn) {
    --running_;
    if (--turn.place->running == 0 && turn.place->waiting.empty()) queues_.erase(turn.place);
  }

 private:
  std::list<Queue>::iterator find_next() {
    return std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) {
      return !q.waiting.empty() && (running_ < usual_ || (running_ == usual_ && q.running == 0));
    });
  }

  const int usual_;
  int running_ = 0;
  std::list<Queue> queues_;  // the next turn first
};

}  // namespace volley::serve
