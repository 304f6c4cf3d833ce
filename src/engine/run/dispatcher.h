// The replicas of one engine: workers with a device, a scheduler and a cache each. The dispatcher chooses the one that
// gets a request (sched/replica_router.h). A replica that fails and cannot restart ends all. Threads: any, except
// construction and destruction.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/run/worker.h"
#include "sched/replica_router.h"

namespace volley::engine {

struct DispatcherConfig {
  int32_t max_queue = 0;      // waiting requests of all replicas
  int32_t page_size = 0;      // the same in all replicas
  bool prefix_cache = false;  // replicas reuse cached prefixes
  // See EngineOptions; each may be empty.
  std::function<void(const std::string&)> on_device_failure, on_warning;
  std::function<void(int replica, std::span<const CacheEvent>)> on_cache_events;
};

class Dispatcher {
 public:
  // Sets the parts' own callbacks. REQUIRES: at least one replica; with several and `prefix_cache`, or with
  // on_cache_events, their schedulers make cache events.
  Dispatcher(std::vector<WorkerParts> replicas, DispatcherConfig config);
  ~Dispatcher();  // cancels every request, then joins

  // As in Worker; calls that concern no single request go to all replicas.
  Status submit(Admission admission);
  void cancel(RequestId id);
  void drop_prefix_cache();
  void set_verify(const VerifyPolicy& policy);
  void set_target_step(double seconds);
  // Sums over replicas; with several, EngineStats::replicas has the parts.
  EngineStats stats() const;

 private:
  void connect(size_t replica, WorkerParts& parts);
  void warn(size_t replica, const std::string& warning);
  void fail(const std::string& failure);
  void published(size_t replica, std::span<const CacheEvent> events);
  void note(const Event& event);
  bool alone() const { return replicas_ == 1; }  // one replica: no choice and no counting

  const DispatcherConfig config_;
  const size_t replicas_;

  std::mutex submit_mutex_;  // held while a request is queued, so that other threads see it in the queue
  std::mutex mutex_;
  sched::ReplicaRouter router_;  // guarded by mutex_
  std::string failure_;          // the first replica's; guarded by mutex_
  size_t failed_ = 0;            // replicas that have ended their requests; guarded by mutex_
  bool told_ = false;            // on_device_failure was called; guarded by mutex_
  std::mutex warn_mutex_;        // held while on_warning runs
  std::mutex life_mutex_;        // held while workers are made, closed, or failed because another one was
  bool closing_ = false;         // guarded by life_mutex_
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace volley::engine
