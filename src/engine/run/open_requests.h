// Ends requests exactly once. A request's events go through a gate that closes behind the last one. So another thread
// can end all requests while the engine's thread is stuck in a hanging device; later events of that thread are dropped.
// Threads: any.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace volley::engine {

class OpenRequests {
 public:
  // Returns the sink that the request's events must go to. This object must outlive it.
  EventSink add(RequestId id, EventSink sink);
  // Ends every request that is open with this error.
  void fail(const Error& error);

 private:
  struct Gate {
    std::mutex mutex;  // held while the sink runs
    EventSink sink;    // empty: the last event was sent
  };
  static void pass(Gate& gate, const Event& event);

  std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Gate>> gates_;  // guarded by mutex_
};

}  // namespace volley::engine
