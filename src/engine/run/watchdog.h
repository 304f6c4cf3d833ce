// Notices a step that does not end. Threads: Step on the engine's; `late` runs on the watchdog's own.
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

  // Calls `late` when a step has taken `limit` plus the last allow(), with that sum; a return of false stops the
  // watchdog. Time in which the process was stopped or the machine asleep does not count. limit 0: never late, and no
  // thread.
  Watchdog(Seconds limit, std::function<bool(Seconds limit)> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Lets steps from now on take this much longer. Any thread.
  void allow(Seconds more) { more_.store(more.count(), std::memory_order_relaxed); }

  // Marks a step from its construction to its destruction.
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
  std::atomic<uint64_t> bounds_{0};  // begins and ends of steps, counted: odd while one runs
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace volley::engine
