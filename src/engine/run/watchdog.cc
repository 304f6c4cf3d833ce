#include "engine/run/watchdog.h"

#include <algorithm>
#include <utility>

namespace volley::engine {

Watchdog::Watchdog(Seconds limit, std::function<bool(Seconds)> late) : limit_(limit), late_(std::move(late)) {
  if (limit_ > Seconds(0)) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// A look counts at most a little more than the time between looks, because a stopped process looks again only later.
void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  const Seconds between = std::min(limit_ / 32, Seconds(1));
  uint64_t seen = 0;
  Seconds taken(0);
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, between, [this] { return stopping_; })) {
    const Clock::time_point now = Clock::now();
    const Seconds passed = std::min(Seconds(now - last), 2 * between);
    last = now;
    const uint64_t bounds = bounds_.load(std::memory_order_relaxed);
    taken = bounds % 2 == 1 && bounds == seen ? taken + passed : Seconds(0);
    seen = bounds;
    const Seconds limit = limit_ + Seconds(more_.load(std::memory_order_relaxed));
    if (taken < limit) continue;
    lock.unlock();
    if (!late_(limit)) return;
    lock.lock();
    taken = Seconds(0);
  }
}

}  // namespace volley::engine
