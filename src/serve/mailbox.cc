#include "serve/mailbox.h"

#include <new>
#include <utility>

#include "serve/answer_size.h"

namespace volley::serve {

Mailbox::Mailbox(size_t limit_bytes, std::function<void()> wake) : limit_bytes_(limit_bytes), wake_(std::move(wake)) {}

bool Mailbox::push(int choice, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (event.finish) ++finished_;
  const bool was_empty = items_.empty();
  // A prompt's log-probabilities are not counted: they come at once, however fast the reader is, and have a limit of
  // their own.
  const size_t bytes = event_json_bytes(event);
  if (!overflowed_ && bytes_ + bytes > limit_bytes_) overflowed_ = true;
  if (!overflowed_ && !keep(choice, event)) overflowed_ = out_of_memory_ = true;
  if (!overflowed_) {
    bytes_ += bytes;
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

// The engine's thread must outlive one request's lack of memory.
bool Mailbox::keep(int choice, const Event& event) {
  try {
    items_.push_back({choice, event});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
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

bool Mailbox::out_of_memory() const {
  const std::lock_guard lock(mutex_);
  return out_of_memory_;
}

size_t Mailbox::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

}  // namespace volley::serve
