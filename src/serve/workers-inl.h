// The threads that parse, render and tokenise, and what they work on. Included by session_shared-inl.h alone.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "serve/api.h"

namespace volley::serve::transport {

namespace asio = boost::asio;

constexpr size_t kLargeBody = size_t{256} << 10;

// A request on its way through a worker thread. Shared, because the connection may leave before the worker is done.
struct Job {
  HttpRequest request;
  std::shared_ptr<FileUpload> upload;  // if the request's body was one
  std::atomic<bool> cancelled{false};  // by the session: nobody waits for the reply any more
  std::optional<Api::Reply> reply;     // of the worker, then of the strand
  bool ready = false;                  // of the strand
};

// Threads for what takes long. Large requests have some of their own, so that others need not wait for them.
class Workers {
 public:
  // Each kind has threads beyond those that grammars may hold up (text::kMostCompiling), where `threads` has.
  explicit Workers(int threads) : usual_(static_cast<size_t>(threads)), large_(static_cast<size_t>(threads)) {}

  template <typename Work>
  void post(bool large, Work work) {
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
    }
    asio::post(large ? large_ : usual_, [this, work = std::move(work)]() mutable {
      work();
      const std::lock_guard lock(mutex_);
      --pending_;
      changed_.notify_all();
    });
  }

  // False: some still work after this time.
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return pending_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int pending_ = 0;  // guarded by mutex_
  asio::thread_pool usual_, large_;
};

}  // namespace volley::serve::transport
