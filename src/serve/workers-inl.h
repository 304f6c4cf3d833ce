// The threads that parse, render and tokenise, and what they work on. Included by session_shared-inl.h alone.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "serve/api.h"
#include "serve/turns.h"

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

// A call that somebody waits for, who would wait for ever if it never came: without memory for it, tries again.
template <typename Executor, typename Handler>
void post_surely(const Executor& executor, const Handler& handler) {
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    try {
      asio::post(executor, handler);
      return;
    } catch (const std::bad_alloc&) {
      continue;
    }
  }
}

// Threads for what takes long. Large requests have some of their own, so that others need not wait for them. Those are
// taken in turns by whose they are.
class Workers {
 public:
  // Each kind has threads beyond those that grammars may hold up (text::kMostCompiling), where `threads` has.
  explicit Workers(int threads) : usual_(static_cast<size_t>(threads)), large_(static_cast<size_t>(threads)) {}

  // std::bad_alloc: `work` will not run. What `work` itself throws is lost.
  template <typename Work>
  void post(bool large, const std::string& whose, Work work) {
    std::function<void()> call = [work = std::make_shared<Work>(std::move(work))] { (*work)(); };
    const std::lock_guard lock(mutex_);
    if (large) {
      asio::post(large_, [this] { run(next_large()); });  // not before this lock is open
      turns_.add(whose, std::move(call));
    } else {
      asio::post(usual_, [this, call = std::move(call)] { run(call); });
    }
    ++pending_;
  }

  // False: some still work after this time.
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return pending_ == 0; });
  }

 private:
  std::function<void()> next_large() {
    const std::lock_guard lock(mutex_);
    return turns_.next();
  }
  // Nothing to call: there was no memory to add it.
  void run(const std::function<void()>& call) {
    if (!call) return;
    try {
      call();
    } catch (const std::exception&) {  // would end the process
    }
    const std::lock_guard lock(mutex_);
    --pending_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int pending_ = 0;  // guarded by mutex_
  Turns turns_;      // guarded by mutex_: large ones
  asio::thread_pool usual_, large_;
};

}  // namespace volley::serve::transport
