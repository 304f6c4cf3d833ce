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

  // Records a step: planned from `begin` on, its work given to the device from `enqueue` to `end`. The device starts
  // with the first work. The step takes at least `least_s`; 0: unknown.
  void planned(Clock::time_point begin, Clock::time_point enqueue, Clock::time_point end, double least_s);
  // Records the end of the oldest step: the host waited from `begin`, and the results were there at `arrived`.
  void landed(Clock::time_point begin, Clock::time_point arrived);

  // The time to plan the next step; nothing: plan it now.
  std::optional<Clock::time_point> next() const;

 private:
  struct Step {
    Clock::time_point begin;  // earliest time at which the device reached it
    Clock::duration least;
  };
  std::deque<Step> steps_;  // steps under way, oldest first
  // Time from planning until the device has enough work to begin with: the longest of late, which fades.
  Clock::duration planning_ = {};
};

}  // namespace volley::engine
