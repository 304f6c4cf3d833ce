#include "engine/run/open_requests.h"

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
  gates_.emplace(id, std::move(gate));
  return outer;
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
