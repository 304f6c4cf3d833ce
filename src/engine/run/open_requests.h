// The last word to every client. Events of a request go through a gate that closes behind its last one, so that whoever
// gives up a device that hangs can end all requests while the engine's thread is stuck in it: what that thread still
// says afterwards goes nowhere. Threads: any.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace volley::engine {

class OpenRequests {
 public:
  // What to send the request's events to instead of `sink`. This must outlive it.
  EventSink add(RequestId id, EventSink sink);
  // Ends every request that is open with this error.
  void fail(const Error& error);

 private:
  struct Gate {
    std::mutex mutex;  // held while the sink runs
    EventSink sink;    // empty: the last event has gone
  };
  static void pass(Gate& gate, const Event& event);

  std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Gate>> gates_;  // guarded by mutex_
};

}  // namespace volley::engine
