// The clock of weighted fair queueing (Demers, Keshav and Shenker 1989; Parekh and Gallager 1993): how far work would
// be if all who have some were served at once, in equal parts. Arithmetic only. Threads: one.
//
// Work that is served in the order of finish() ends no later than in equal parts (Friedman and Henderson 2003: "fair
// sojourn protocol"), and short work ends long before.
#pragma once

#include <cstdint>
#include <set>

namespace volley::sched {

class VirtualClock {
 public:
  // When `work` more of somebody would end whose work so far ends at `before` (someone new: 0).
  double finish(double before, int64_t work);
  void forget(double finish);  // what ends there was given up; nothing happens when the clock is past it

  void advance(int64_t work);  // so much was done, whoever's it was
  void clear();                // there is no work left

  double now() const { return now_; }

 private:
  double now_ = 0;
  std::multiset<double> ends_;  // after now_: of everybody who would still be served
};

}  // namespace volley::sched
