// The clock of weighted fair queueing (Demers, Keshav and Shenker 1989; Parekh and Gallager 1993): how much work would
// be done if all users with work were served at once, in equal parts. Arithmetic only. Threads: one.
//
// Work that is served in the order of finish() ends no later than in equal parts (Friedman and Henderson 2003: "fair
// sojourn protocol"), and short work ends long before.
#pragma once

#include <cstdint>
#include <set>

namespace volley::sched {

class VirtualClock {
 public:
  // The finish time of `work` more for a user whose earlier work finishes at `before` (0 for a new user).
  double finish(double before, int64_t work);
  void forget(double finish);  // the work that ends at `finish` was given up; no effect once the clock is past it

  void advance(int64_t work);  // `work` was done, for any user
  void clear();                // no work is left

  double now() const { return now_; }

 private:
  double now_ = 0;
  std::multiset<double> ends_;  // later than now_: finish times of all users still served
};

}  // namespace volley::sched
