#include "serve/mailbox.h"

#include <utility>

namespace volley::serve {
namespace {

// A chunk's frame and one entry of log-probabilities, as JSON.
constexpr size_t kFrameBytes = 250;
constexpr size_t kLogprobBytes = 80;

// A prompt's log-probabilities are not counted: they come at once, however fast the reader is, and only for a prompt
// that it sent itself.
size_t json_bytes(const Event& event) {
  size_t bytes = kFrameBytes + event.text.size();
  for (const PositionLogprobs& position : event.logprobs) bytes += kLogprobBytes * (1 + position.top.size());
  return bytes;
}

}  // namespace

Mailbox::Mailbox(size_t limit_bytes, std::function<void()> wake) : limit_bytes_(limit_bytes), wake_(std::move(wake)) {}

bool Mailbox::push(int choice, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (event.finish) ++finished_;
  const bool was_empty = items_.empty();
  if (!overflowed_ && bytes_ + json_bytes(event) > limit_bytes_) overflowed_ = true;
  if (!overflowed_) {
    items_.push_back({choice, event});
    bytes_ += json_bytes(event);
  } else if (event.finish) {
    Event last;
    last.id = event.id;
    last.finish = event.finish;
    items_.push_back({choice, std::move(last)});
  }
  // Under the lock, so that close() knows that no wake is under way.
  if (was_empty && !items_.empty() && wake_) wake_();
  return !overflowed_;
}

std::vector<Mailbox::Item> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(items_, {});
}

void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake_ = nullptr;
  items_.clear();
}

bool Mailbox::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

size_t Mailbox::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

}  // namespace volley::serve
