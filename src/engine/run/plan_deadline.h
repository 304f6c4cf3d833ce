// When to plan the next step while one runs on the device: so late that requests that come meanwhile are in it, which
// would else wait for two steps, and early enough for the device not to wait. Arithmetic only: times come in. Threads:
// one, the engine's. What a step takes is for decode::CostModel to say.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace volley::engine {

class PlanDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A step was planned from `begin` on, and the device was given its work from `enqueue` to `end`: it begins with the
  // first of it. It takes at least `least_s`; 0: not known.
  void planned(Clock::time_point begin, Clock::time_point enqueue, Clock::time_point end, double least_s);
  // From `begin` on the results of the oldest step were waited for, and at `arrived` they were there.
  void landed(Clock::time_point begin, Clock::time_point arrived);

  // Until when to wait with the next step; nothing: it can be planned at once.
  std::optional<Clock::time_point> next() const;

 private:
  struct Step {
    Clock::time_point begin;  // when the device came to it, at the earliest
    Clock::duration least;
  };
  std::deque<Step> steps_;  // under way, the oldest first
  // What planning takes until the device has enough to begin with: the longest of late, which fades.
  Clock::duration planning_ = {};
};

}  // namespace volley::engine
