// Repeats a call on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace volley::apps {

class Ticker {
 public:
  // Calls `tick` after each `interval`, until the destructor, which waits for it.
  Ticker(std::chrono::milliseconds interval, std::function<void()> tick);

 private:
  void run(const std::stop_token& stop);

  const std::chrono::milliseconds interval_;
  const std::function<void()> tick_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last, because it starts when everything above exists
};

}  // namespace volley::apps
