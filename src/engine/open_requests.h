// The last word to every client. Events of a request go through a gate that closes behind its last one, so that whoever
// gives up a device that hangs can end all requests while the engine's thread is stuck in it: what that thread still
// says afterwards goes nowhere. Threads: any.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace volley::engine {

class OpenRequests {
 public:
  // What to send the request's events to instead of `sink`. This must outlive it.
  EventSink add(RequestId id, EventSink sink);  // std::bad_alloc: nobody was added
  // Notes who is to end, and whoever is not open not at all. Needs no memory: its place was taken by add().
  void cancel(RequestId id) noexcept;
  bool any_cancelled() const;
  // Calls `take` with each that was noted since it was last called; some may have ended meanwhile. Whoever it throws
  // for stays noted.
  template <typename Take>
  void take_cancelled(const Take& take) {
    const std::lock_guard lock(mutex_);
    for (; !cancelled_.empty(); cancelled_.pop_back()) take(cancelled_.back());
  }
  // Ends every request that is open with this error.
  void fail(const Error& error);

 private:
  struct Gate {
    std::mutex mutex;        // held while the sink runs
    EventSink sink;          // empty: the last event has gone
    bool cancelled = false;  // guarded by OpenRequests::mutex_
  };
  static void pass(Gate& gate, const Event& event);

  mutable std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Gate>> gates_;  // guarded by mutex_
  std::vector<RequestId> cancelled_;                            // has room for all that are open; guarded by mutex_
};

}  // namespace volley::engine
