// The memory of bodies that arrive or wait, or of answers that nobody has read yet, of all connections together. Any
// thread.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace volley::serve {

class BytePot {
 public:
  class Share;

  // `largest`: so much has room in an empty pot, whatever `total` is.
  BytePot(size_t total, size_t largest) : total_(std::max(total, largest)), share_(std::max(total_ / 2, largest)) {}

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

// What one connection holds in a pot.
class BytePot::Share {
 public:
  explicit Share(BytePot& pot) : pot_(&pot) {}
  ~Share() { release(); }
  Share(Share&& other) noexcept
      : pot_(other.pot_), whose_(std::move(other.whose_)), held_(std::exchange(other.held_, 0)) {}
  Share& operator=(Share&&) = delete;

  // False: it does not fit, and nothing is held any more. REQUIRES: what is held is the same client's, and no more.
  bool grow_to(const std::string& whose, size_t bytes) {
    if (held_ == 0) whose_ = whose;
    if (!pot_->take(whose_, bytes - held_)) {
      release();
      return false;
    }
    held_ = bytes;
    return true;
  }
  void release() noexcept {
    if (held_ > 0) pot_->give_back(whose_, std::exchange(held_, 0));
  }

 private:
  BytePot* pot_;
  std::string whose_;
  size_t held_ = 0;
};

}  // namespace volley::serve
