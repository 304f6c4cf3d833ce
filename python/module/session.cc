#include "module/session.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace volley::python {

struct Session::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Completion> done;  // guarded by mutex
};

namespace {

template <typename T>
void append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

Session::Session(std::shared_ptr<Engine> engine) : engine_(std::move(engine)), state_(std::make_shared<State>()) {}

Session::~Session() {
  if (open_ > 0) cancel();
}

Status Session::submit(int64_t index, GenerateRequest request) {
  auto completion = std::make_shared<Completion>();
  completion->index = index;
  auto sink = [state = state_, completion](const Event& event) {
    append(&completion->tokens, event.tokens);
    completion->text += event.text;
    append(&completion->logprobs, event.logprobs);
    append(&completion->prompt_logprobs, event.prompt_logprobs);
    if (!event.finish) return;
    completion->finish = *event.finish;
    const std::lock_guard lock(state->mutex);
    state->done.push_back(std::move(*completion));
    state->changed.notify_one();
  };
  VOLLEY_ASSIGN(const RequestId id, engine_->submit(std::move(request), std::move(sink)));
  ids_.push_back(id);
  ++open_;
  return {};
}

int64_t Session::open() const {
  return open_;
}

std::vector<Completion> Session::wait(double seconds) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !state_->done.empty(); });
  std::vector<Completion> done = std::exchange(state_->done, {});
  open_ -= static_cast<int64_t>(done.size());
  return done;
}

void Session::cancel() {
  for (const RequestId id : ids_) engine_->cancel(id);
}

}  // namespace volley::python
