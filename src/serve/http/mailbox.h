// Carries news of a request's choices from the engine's thread to the connection that sends them.
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

  // push() calls `wake` on its own thread when an empty box gets an item, once until the next take(). It must be quick
  // and must not call the box. `limit_bytes`: bound on waiting news, as the approximate size of their JSON.
  Mailbox(size_t limit_bytes, std::function<void()> wake);

  // Any thread, in practice the engine's. False: the reader is too slow or gone, the news was dropped, and the request
  // should be cancelled. A request's last event is always kept, without its text.
  [[nodiscard]] bool push(int choice, const Event& event);

  // All waiting items, oldest first.
  std::vector<Item> take();

  // Ends reading: drops all items, now and later. On return no wake is running and none will come.
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
