#include "serve/http/mailbox.h"

#include <utility>

#include "serve/api/answer_size.h"

namespace volley::serve {

Mailbox::Mailbox(size_t limit_bytes, std::function<void()> wake) : limit_bytes_(limit_bytes), wake_(std::move(wake)) {}

bool Mailbox::push(int choice, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (event.finish) ++finished_;
  const bool was_empty = items_.empty();
  // A prompt's log-probabilities do not count: they come at once for any reader, and have a limit of their own.
  const size_t bytes = event_json_bytes(event);
  if (!overflowed_ && bytes_ + bytes > limit_bytes_) overflowed_ = true;
  if (!overflowed_) {
    bytes_ += bytes;
    items_.push_back({choice, event});
  } else if (event.finish) {
    Event last;
    last.id = event.id;
    last.finish = event.finish;
    items_.push_back({choice, std::move(last)});
  }
  // Holds the lock, so that close() knows that no wake is running.
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
