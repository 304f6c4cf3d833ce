#include "apps/ticker.h"

#include <utility>

namespace volley::apps {

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Ticker::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, stop, interval_, [] { return false; }) && !stop.stop_requested()) {
    tick_();
  }
}

}  // namespace volley::apps
