// Notices a step that does not end. Threads: Step on the engine's thread; `late` runs on the watchdog's own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace volley::engine {

class Watchdog {
 public:
  using Seconds = std::chrono::duration<double>;

  // `late` is called when a step has taken `limit` and what allow() said last, with their sum; false: never again. Time
  // in which the process was stopped, or the machine asleep, does not count. limit 0: never, and there is no thread.
  Watchdog(Seconds limit, std::function<bool(Seconds limit)> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Steps from now on may take so much longer. Any thread.
  void allow(Seconds more) { more_.store(more.count(), std::memory_order_relaxed); }

  // A step, from its begin to its end.
  class Step {
   public:
    explicit Step(Watchdog& watchdog) : bounds_(watchdog.bounds_) { bounds_.fetch_add(1, std::memory_order_relaxed); }
    ~Step() { bounds_.fetch_add(1, std::memory_order_relaxed); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    std::atomic<uint64_t>& bounds_;
  };

 private:
  void watch();

  const Seconds limit_;
  const std::function<bool(Seconds)> late_;
  std::atomic<double> more_{0};      // seconds
  std::atomic<uint64_t> bounds_{0};  // begins and ends of steps so far: odd while one runs
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace volley::engine
