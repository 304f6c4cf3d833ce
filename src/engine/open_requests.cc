#include "engine/open_requests.h"

#include <utility>

namespace volley::engine {

EventSink OpenRequests::add(RequestId id, EventSink sink) {
  auto gate = std::make_shared<Gate>();
  gate->sink = std::move(sink);
  EventSink outer = [this, gate](const Event& event) {
    pass(*gate, event);
    if (!event.finish) return;
    const std::lock_guard lock(mutex_);
    gates_.erase(event.id);
  };
  const std::lock_guard lock(mutex_);
  const size_t places = cancelled_.size() + gates_.size() + 1;
  if (cancelled_.capacity() < places) cancelled_.reserve(2 * places);
  gates_.emplace(id, std::move(gate));  // last: where there is no memory for it, nobody is open
  return outer;
}

void OpenRequests::cancel(RequestId id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto gate = gates_.find(id);
  if (gate == gates_.end() || std::exchange(gate->second->cancelled, true)) return;
  cancelled_.push_back(id);
}

bool OpenRequests::any_cancelled() const {
  const std::lock_guard lock(mutex_);
  return !cancelled_.empty();
}

void OpenRequests::pass(Gate& gate, const Event& event) {
  const std::lock_guard lock(gate.mutex);
  if (!gate.sink) return;
  gate.sink(event);
  if (event.finish) gate.sink = nullptr;
}

void OpenRequests::fail(const Error& error) {
  std::unordered_map<RequestId, std::shared_ptr<Gate>> gates;
  {
    const std::lock_guard lock(mutex_);
    gates = gates_;
  }
  for (const auto& [id, gate] : gates) {
    Event event;
    event.id = id;
    event.finish.emplace().reason = FinishReason::kError;
    event.finish->error = error;
    pass(*gate, event);
  }
}

}  // namespace volley::engine
