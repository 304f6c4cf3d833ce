#include "engine/plan_time.h"

#include <algorithm>

#include "base/check.h"

namespace volley::engine {
namespace {

using std::chrono::microseconds;

// Planning must be over before the step that runs. Twice its usual time, and what a thread may be woken late.
constexpr int kPlannings = 2;
constexpr auto kWaking = microseconds(500);
// Who waited for results less than this may have come late for them, and the next step began who knows when.
constexpr auto kWaited = microseconds(100);

}  // namespace

void PlanTime::planned(Clock::time_point begin, Clock::time_point end, double least_s) {
  planning_ = std::max(end - begin, planning_ * 9 / 10);
  if (least_.empty()) began_ = end;
  least_.push_back(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(least_s)));
}

void PlanTime::landed(Clock::time_point begin, Clock::time_point arrived) {
  VOLLEY_CHECK(!least_.empty());
  least_.pop_front();
  began_.reset();
  if (arrived - begin > kWaited) began_ = arrived;
}

std::optional<PlanTime::Clock::time_point> PlanTime::next() const {
  if (least_.size() != 1 || !began_) return std::nullopt;
  const Clock::duration spare = least_.front() - kPlannings * planning_ - kWaking;
  if (spare <= Clock::duration::zero()) return std::nullopt;
  return *began_ + spare;
}

}  // namespace volley::engine
