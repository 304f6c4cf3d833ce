#include "apps/client/request_pool.h"

#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace volley::apps {

struct RequestPool::State {
  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by mutex; `open` by index.
  std::unordered_map<int64_t, RequestId> open;
  int64_t answering = 0;  // open requests that have tokens
  News news;
  bool woken = false;
  RunRecorder recorder;
};

namespace {

void append(Completion* completion, const Event& event) {
  completion->tokens.insert(completion->tokens.end(), event.tokens.begin(), event.tokens.end());
  for (const Event::Mark& mark : event.marks) {
    completion->marks.push_back({mark.token, completion->text.size() + mark.at});
  }
  completion->text += event.text;
  completion->logprobs.insert(completion->logprobs.end(), event.logprobs.begin(), event.logprobs.end());
}

}  // namespace

RequestPool::RequestPool(Engine& engine) : engine_(engine), state_(std::make_shared<State>()) {}

RequestPool::~RequestPool() {
  cancel_all();
  while (open() > 0) wait(std::chrono::milliseconds(100));
}

Status RequestPool::submit(int64_t index, GenerateRequest request, bool stream) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->recorder.on_start(Clock::now());
    state_->open.emplace(index, 0);
  }
  auto completion = std::make_shared<Completion>();
  completion->index = index;
  // Only the engine's thread uses a completion between its first and last event, so only ends take the lock.
  auto sink = [state = state_, completion, stream](const Event& event) {
    const bool first = completion->tokens.empty() && !event.tokens.empty();
    append(completion.get(), event);
    if (!first && !event.finish && !stream) return;
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(state->mutex);
    if (first) state->recorder.on_first_token(now);
    state->answering += (first ? 1 : 0) - (event.finish && !completion->tokens.empty() ? 1 : 0);
    if (stream) state->news.streamed.push_back(event);
    if (event.finish) {
      completion->finish = *event.finish;
      state->recorder.on_finish(now, *event.finish, !completion->tokens.empty());
      state->open.erase(completion->index);
      state->news.done.push_back(std::move(*completion));
    }
    if (event.finish || stream) state->changed.notify_one();
  };
  auto id = engine_.submit(std::move(request), std::move(sink));
  const std::lock_guard lock(state_->mutex);
  if (!id.ok()) {
    state_->open.erase(index);
    state_->recorder.on_start_failed();
    return id.error();
  }
  // The request may have ended already, with its entry.
  if (const auto entry = state_->open.find(index); entry != state_->open.end()) entry->second = *id;
  return {};
}

void RequestPool::count_refused() {
  const std::lock_guard lock(state_->mutex);
  state_->recorder.on_refused();
}

int64_t RequestPool::open() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int64_t>(state_->open.size());
}

int64_t RequestPool::answering() const {
  const std::lock_guard lock(state_->mutex);
  return state_->answering;
}

RequestPool::News RequestPool::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(
      lock, limit, [this] { return state_->woken || !state_->news.done.empty() || !state_->news.streamed.empty(); });
  state_->woken = false;
  return std::exchange(state_->news, {});
}

void RequestPool::wake() {
  const std::lock_guard lock(state_->mutex);
  state_->woken = true;
  state_->changed.notify_one();
}

void RequestPool::cancel_all() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& [index, id] : state_->open) ids.push_back(id);
  }
  for (const RequestId id : ids) engine_.cancel(id);
}

RunSummary RequestPool::summary() const {
  const std::lock_guard lock(state_->mutex);
  return state_->recorder.summary();
}

}  // namespace volley::apps
