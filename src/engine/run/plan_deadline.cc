#include "engine/run/plan_deadline.h"

#include <algorithm>

#include "base/check.h"

namespace volley::engine {
namespace {

using std::chrono::microseconds;

// Planning must end before the running step does. This factor on the usual time of planning, and kWaking, cover a
// thread that wakes late and the way of the first work to the device.
constexpr int kPlannings = 2;
// Where kernels are launched one by one, the device works on the first while the host launches the last. A fourth of
// the launching must be ahead, because some kernels are over sooner than the next is launched.
constexpr int kAhead = 4;
constexpr auto kWaking = microseconds(500);
// A shorter wait for results may mean that they came earlier, and that the next step has long begun.
constexpr auto kWaited = microseconds(100);

}  // namespace

void PlanDeadline::planned(Clock::time_point begin, Clock::time_point enqueue, Clock::time_point end, double least_s) {
  planning_ = std::max(enqueue - begin + (end - enqueue) / kAhead, planning_ * 9 / 10);
  steps_.push_back({enqueue, std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(least_s))});
}

void PlanDeadline::landed(Clock::time_point begin, Clock::time_point arrived) {
  VOLLEY_CHECK(!steps_.empty());
  steps_.pop_front();
  if (!steps_.empty() && arrived - begin > kWaited) steps_.front().begin = arrived;
}

std::optional<PlanDeadline::Clock::time_point> PlanDeadline::next() const {
  if (steps_.size() != 1) return std::nullopt;
  const Clock::duration spare = steps_.front().least - kPlannings * planning_ - kWaking;
  if (spare <= Clock::duration::zero()) return std::nullopt;
  return steps_.front().begin + spare;
}

}  // namespace volley::engine
