#include "module/session.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace volley::python {

struct Session::State {
  explicit State(bool streaming) : streaming(streaming) {
    if (streaming) descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~State() {
    if (descriptor >= 0) close(descriptor);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void add(Completion completion) {
    const std::lock_guard lock(mutex);
    done.push_back(std::move(completion));
    changed.notify_one();
    const uint64_t one = 1;
    if (descriptor >= 0) (void)!write(descriptor, &one, sizeof one);
  }

  const bool streaming;
  int descriptor = -1;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Completion> done;  // guarded by mutex
};

namespace {

template <typename T>
void append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

void take(const Event& event, Completion* completion) {
  append(&completion->tokens, event.tokens);
  for (const Event::Mark& mark : event.marks) {
    completion->marks.push_back({mark.token, completion->text.size() + mark.at});
  }
  completion->text += event.text;
  append(&completion->logprobs, event.logprobs);
  append(&completion->prompt_logprobs, event.prompt_logprobs);
  if (!event.finish) return;
  completion->ended = true;
  completion->finish = *event.finish;
}

}  // namespace

Session::Session(std::shared_ptr<Engine> engine, bool streaming)
    : engine_(std::move(engine)), state_(std::make_shared<State>(streaming)) {}

Session::~Session() {
  cancel();
}

Status Session::submit(int64_t index, GenerateRequest request) {
  auto completion = std::make_shared<Completion>();
  completion->index = index;
  auto sink = [state = state_, completion](const Event& event) {
    take(event, completion.get());
    if (!state->streaming && !event.finish) return;
    state->add(std::exchange(*completion, Completion{completion->index}));
  };
  VOLLEY_ASSIGN(const RequestId id, engine_->submit(std::move(request), std::move(sink)));
  open_.emplace(index, id);
  return {};
}

int64_t Session::open() const {
  return forked() ? 0 : static_cast<int64_t>(open_.size());
}

std::vector<Completion> Session::wait(double seconds) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !state_->done.empty(); });
  uint64_t count = 0;
  if (state_->descriptor >= 0) (void)!read(state_->descriptor, &count, sizeof count);
  std::vector<Completion> done = std::exchange(state_->done, {});
  for (const Completion& completion : done) {
    if (completion.ended) open_.erase(completion.index);
  }
  return done;
}

int Session::descriptor() const {
  return state_->descriptor;
}

void Session::cancel() {
  if (forked()) return;
  for (const auto& [index, id] : open_) engine_->cancel(id);
}

void Session::cancel(int64_t index) {
  if (forked()) return;
  if (const auto found = open_.find(index); found != open_.end()) engine_->cancel(found->second);
}

}  // namespace volley::python
