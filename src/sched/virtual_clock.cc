#include "sched/virtual_clock.h"

#include <algorithm>

namespace volley::sched {

double VirtualClock::finish(double before, int64_t work) {
  forget(before);  // the same one's end moves on
  const double end = std::max(now_, before) + static_cast<double>(work);
  ends_.insert(end);
  return end;
}

void VirtualClock::forget(double finish) {
  const auto found = ends_.find(finish);
  if (found != ends_.end()) ends_.erase(found);
}

void VirtualClock::advance(int64_t work) {
  auto left = static_cast<double>(work);
  while (!ends_.empty() && left > 0) {
    const auto served = static_cast<double>(ends_.size());
    const double next = *ends_.begin();
    if (left < (next - now_) * served) {
      now_ += left / served;
      return;
    }
    left -= (next - now_) * served;
    now_ = next;
    ends_.erase(ends_.begin());
  }
}

void VirtualClock::clear() {
  if (!ends_.empty()) now_ = *ends_.rbegin();
  ends_.clear();
}

}  // namespace volley::sched
