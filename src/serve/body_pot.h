// The memory of bodies that arrive or wait, of all connections together. Any thread.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

namespace volley::serve {

class BodyPot {
 public:
  // `largest`: a body of that size has room in an empty pot, whatever `total` is.
  BodyPot(size_t total, size_t largest) : total_(std::max(total, largest)), share_(std::max(total_ / 2, largest)) {}

  // False: all together would have too much, or this client more than half, which leaves the rest to others.
  bool take(const std::string& whose, size_t bytes) {
    const std::lock_guard lock(mutex_);
    size_t& held = held_[whose];
    const bool fits = bytes <= total_ - std::min(all_, total_) && bytes <= share_ - std::min(held, share_);
    if (fits) {
      held += bytes;
      all_ += bytes;
    }
    if (held == 0) held_.erase(whose);
    return fits;
  }
  void give_back(const std::string& whose, size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(whose);
    found->second -= bytes;
    all_ -= bytes;
    if (found->second == 0) held_.erase(found);
  }

 private:
  const size_t total_, share_;
  std::mutex mutex_;
  size_t all_ = 0;                      // guarded by mutex_, like the next
  std::map<std::string, size_t> held_;  // no zeros
};

}  // namespace volley::serve
