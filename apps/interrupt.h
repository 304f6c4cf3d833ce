// Turns Ctrl-C and SIGTERM into calls on a thread of their own instead of a signal handler: the first asks the program
// to end in order, the second ends it at once.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace volley::apps {

// Make one before any other thread exists, so that all threads inherit the blocked signals.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // The first signal after this calls `handler` on the watch's thread. Without a handler a signal ends the process at
  // once, with the status below, because nothing is worth saving yet. An empty function removes the handler, and
  // returns only when no call of it is running.
  void set_handler(std::function<void()> handler);
  // Every Ctrl-C then only calls this handler; SIGTERM works as before. An empty function removes it, as above.
  void set_ctrl_c_handler(std::function<void()> handler);
  bool interrupted() const { return signal_.load(std::memory_order_acquire) != 0; }
  // The exit status after the first signal: kExitInterrupted or kExitTerminated. REQUIRES: interrupted().
  int exit_status() const;

 private:
  void watch();

  int signals_ = -1, stop_ = -1;  // signalfd, eventfd
  std::atomic<int> signal_{0};    // the first signal
  std::mutex mutex_;
  std::function<void()> handler_, ctrl_c_handler_;  // guarded by mutex_
  std::thread thread_;
};

// Sets a handler for a scope.
class InterruptScope {
 public:
  InterruptScope(InterruptWatch* watch, std::function<void()> handler) : watch_(watch) {
    watch_->set_handler(std::move(handler));
  }
  ~InterruptScope() { watch_->set_handler({}); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  InterruptWatch* watch_;
};

}  // namespace volley::apps
