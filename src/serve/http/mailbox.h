// News of a request's choices on their way from the engine's thread to the connection that sends them.
#pragma once

#include <volley/engine.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace volley::serve {

class Mailbox {
 public:
  struct Item {
    int choice = 0;
    Event event;
  };

  // `wake` is called from push(), on the pusher's thread, when something arrives in an empty box: once until the next
  // take(). It must be quick and must not call the box. `limit_bytes`: of waiting news, about as large as their JSON.
  Mailbox(size_t limit_bytes, std::function<void()> wake);

  // Any thread, in practice the engine's. False: the reader is too slow (or gone), the news was dropped and its request
  // should be cancelled. A request's last event is always kept, without its text.
  [[nodiscard]] bool push(int choice, const Event& event);

  // All that waits, oldest first.
  std::vector<Item> take();

  // Nobody reads any more: drops everything, now and later. When it returns, no wake is running and none will come.
  void close();

  bool overflowed() const;
  size_t finished() const;  // requests whose last event has come, taken or not

 private:
  const size_t limit_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::function<void()> wake_;
  std::vector<Item> items_;
  size_t bytes_ = 0;
  size_t finished_ = 0;
  bool overflowed_ = false;
  bool closed_ = false;
};

}  // namespace volley::serve
