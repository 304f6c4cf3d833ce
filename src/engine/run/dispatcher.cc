#include "engine/run/dispatcher.h"

#include <utility>

#include "engine/run/stats_sum.h"
#include "kv/page_hash.h"

namespace volley::engine {

Dispatcher::Dispatcher(std::vector<WorkerParts> replicas, DispatcherConfig config)
    : config_(std::move(config)), replicas_(replicas.size()), router_(replicas.size(), config_.page_size) {
  const std::lock_guard lock(life_mutex_);
  for (size_t i = 0; i < replicas_; ++i) {
    connect(i, replicas[i]);
    workers_.push_back(std::make_unique<Worker>(std::move(replicas[i])));
  }
}

void Dispatcher::connect(size_t replica, WorkerParts& parts) {
  parts.max_queue = config_.max_queue;
  parts.on_device_failure = [this](const std::string& failure) { fail(failure); };
  if (config_.on_warning) parts.on_warning = [this, replica](const std::string& warning) { warn(replica, warning); };
  if (!alone() || config_.on_cache_events) {
    parts.on_published = [this, replica](std::span<const CacheEvent> events) { published(replica, events); };
  }
  if (alone()) return;
  parts.on_restart = [this, replica](bool begins) {
    const std::lock_guard lock(mutex_);
    router_.set_available(replica, !begins);
  };
}

// A failing worker may be failing the others, so all stop before any is destroyed.
Dispatcher::~Dispatcher() {
  for (const auto& worker : workers_) worker->stop();
  {
    const std::lock_guard lock(life_mutex_);
    closing_ = true;
  }
  for (const auto& worker : workers_) worker->join();
}

Status Dispatcher::submit(Admission admission) {
  if (alone()) return workers_[0]->submit(std::move(admission));
  const GenerateRequest& request = admission.request;
  sched::ReplicaRouter::Arrival arrival{.id = admission.id,
                                        .prompt = static_cast<int64_t>(request.prompt.size()),
                                        .max_tokens = request.max_tokens,
                                        .pages = {}};
  if (config_.prefix_cache && request.prompt_logprobs < 0) {
    const std::vector<TokenId>& keys = request.prompt_keys.empty() ? request.prompt : request.prompt_keys;
    arrival.pages = kv::page_hashes(request.cache_namespace, keys, config_.page_size);
  }
  const RequestId id = admission.id;
  admission.sink = [this, sink = std::move(admission.sink)](const Event& event) {
    note(event);
    sink(event);
  };
  const std::lock_guard submitting(submit_mutex_);
  FairSpace queued(queue_limits(config_.max_queue));
  for (const auto& worker : workers_) queued.take(worker->queued());
  VOLLEY_RETURN_IF_ERROR(check_place(queued, request.tenant));
  size_t replica = 0;
  {
    const std::lock_guard lock(mutex_);
    replica = router_.add(std::move(arrival));
  }
  Status status = workers_[replica]->submit(std::move(admission));
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    router_.ended(id);
  }
  return status;
}

// Noted before the client hears of the event, so that the client's next request finds the replica's new state.
void Dispatcher::note(const Event& event) {
  const std::lock_guard lock(mutex_);
  router_.progressed(event.id, static_cast<int64_t>(event.tokens.size()));
  if (event.finish) router_.ended(event.id);
}

void Dispatcher::cancel(RequestId id) {
  if (alone()) return workers_[0]->cancel(id);
  size_t replica = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!router_.has(id)) return;
    replica = router_.replica_of(id);
  }
  workers_[replica]->cancel(id);
}

void Dispatcher::drop_prefix_cache() {
  for (const auto& worker : workers_) worker->drop_prefix_cache();
}

void Dispatcher::set_verify(const VerifyPolicy& policy) {
  for (const auto& worker : workers_) worker->set_verify(policy);
}

void Dispatcher::set_target_step(double seconds) {
  for (const auto& worker : workers_) worker->set_target_step(seconds);
}

EngineStats Dispatcher::stats() const {
  if (alone()) return workers_[0]->stats();
  std::vector<EngineStats> replicas;
  for (const auto& worker : workers_) replicas.push_back(worker->stats());
  return sum(std::move(replicas));
}

void Dispatcher::published(size_t replica, std::span<const CacheEvent> events) {
  if (!alone()) {
    const std::lock_guard lock(mutex_);
    router_.published(replica, events);
  }
  if (!events.empty() && config_.on_cache_events) config_.on_cache_events(static_cast<int>(replica), events);
}

void Dispatcher::warn(size_t replica, const std::string& warning) {
  const std::lock_guard lock(warn_mutex_);
  config_.on_warning(alone() ? warning : "Replica " + std::to_string(replica) + ": " + warning);
}

// Each replica calls this after the last events of its requests. The first to fail fails the others. When the last has
// failed, every request has ended. While the engine closes, the others end by themselves, and the engine waits for this
// one.
void Dispatcher::fail(const std::string& failure) {
  bool first = false, closing = false;
  {
    const std::lock_guard lock(mutex_);
    first = failure_.empty();
    if (first) failure_ = failure;
  }
  if (first) {
    const std::lock_guard lock(life_mutex_);
    closing = closing_;
    if (!closing) {
      for (const auto& worker : workers_) worker->give_up(failure);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ++failed_;
    if (told_ || (failed_ < replicas_ && !closing)) return;
    told_ = true;
  }
  if (config_.on_device_failure) config_.on_device_failure(failure_);
}

}  // namespace volley::engine
