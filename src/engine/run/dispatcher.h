// The replicas of one engine: workers, each with its device, scheduler and cache, and which of them gets a request
// (sched/replica_router.h). One that fails and cannot be mended ends all. Threads: any, but for construction and
// destruction.
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
  int32_t max_queue = 0;      // waiting requests, of all replicas together
  int32_t page_size = 0;      // of all replicas
  bool prefix_cache = false;  // replicas reuse what they have computed
  // EngineOptions has what they mean; each may be empty.
  std::function<void(const std::string&)> on_device_failure, on_warning;
  std::function<void(int replica, std::span<const CacheEvent>)> on_cache_events;
};

class Dispatcher {
 public:
  // The parts' own callbacks are set here. REQUIRES: at least one; their schedulers make cache events if there are
  // several and `prefix_cache`, or on_cache_events.
  Dispatcher(std::vector<WorkerParts> replicas, DispatcherConfig config);
  ~Dispatcher();  // cancels every request, then joins

  // As Worker has them; what is for no single request goes to all replicas.
  Status submit(Admission admission);
  void cancel(RequestId id);
  void drop_prefix_cache();
  void set_verify(const VerifyPolicy& policy);
  void set_target_step(double seconds);
  // The sums; of several replicas with EngineStats::replicas.
  EngineStats stats() const;

 private:
  void connect(size_t replica, WorkerParts& parts);
  void warn(size_t replica, const std::string& warning);
  void fail(const std::string& failure);
  void published(size_t replica, std::span<const CacheEvent> events);
  void note(const Event& event);
  bool alone() const { return replicas_ == 1; }  // no choice, and nothing to count for it

  const DispatcherConfig config_;
  const size_t replicas_;

  std::mutex submit_mutex_;  // held while a request is queued: others then see it in the queue
  std::mutex mutex_;
  sched::ReplicaRouter router_;  // guarded by mutex_
  std::string failure_;          // the first one's; guarded by mutex_
  size_t failed_ = 0;            // replicas that have ended their requests; guarded by mutex_
  bool told_ = false;            // on_device_failure was called; guarded by mutex_
  std::mutex warn_mutex_;        // held while on_warning runs
  std::mutex life_mutex_;        // held while workers are made, closed, or failed because another one was
  bool closing_ = false;         // guarded by life_mutex_
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace volley::engine
