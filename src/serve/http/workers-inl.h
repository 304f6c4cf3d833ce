// Threads that parse, render and tokenise, and their work. Included by session_shared-inl.h alone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/api/api.h"
#include "serve/http/turns.h"

namespace volley::serve::transport {

namespace asio = boost::asio;

constexpr size_t kLargeBody = size_t{256} << 10;

// Whether a body may have pictures, by the names of their parts, or goes on with a response that may have some: a body
// of megabytes is looked through in no time.
inline bool may_have_pictures(const std::string& body) {
  constexpr std::string_view kNames[] = {"\"image", "\"input_image\"", "\"previous_response_id\"",
                                         "\"item_reference\""};
  return std::ranges::any_of(kNames, [&](std::string_view name) {
    return memmem(body.data(), body.size(), name.data(), name.size()) != nullptr;
  });
}

// A request on its way through a worker thread. Shared, because the connection may leave before the worker is done.
struct Job {
  HttpRequest request;
  std::shared_ptr<FileUpload> upload;  // for a body that is a file
  std::atomic<bool> cancelled{false};  // set by the session: the reply is not needed any more
  std::optional<Api::Reply> reply;     // the worker's, then the strand's
  bool ready = false;                  // on the strand
};

// Threads for long work, in lanes that do not wait for each other. In each lane clients take turns.
class Workers {
 public:
  enum Lane : size_t {
    kGrammar,  // compiles a grammar, which may take seconds
    kDisk,     // waits for the disk
    kUsual,
    kPictures,  // requests with pictures, which take long to decode
    kLarge,     // requests with large bodies
  };
  struct Counts {
    int grammar = 1, disk = 1, usual = 1, pictures = 1, large = 1;
  };

  explicit Workers(const Counts& threads)
      : lanes_{Threads(threads.grammar), Threads(threads.disk), Threads(threads.usual), Threads(threads.pictures),
               Threads(threads.large)} {}

  // `work` must not throw. It may post to a lane before its own.
  template <typename Work>
  void post(Lane lane, const std::string& whose, Work work) {
    std::function<void()> call = [work = std::make_shared<Work>(std::move(work))] { (*work)(); };
    Threads& to = lanes_[lane];
    const std::lock_guard lock(mutex_);
    asio::post(to.threads, [this, &to] { run(to); });  // it starts once this lock is free
    to.turns.add(whose, std::move(call));
    ++pending_;
  }

  // False: some still work after this time.
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return pending_ == 0; });
  }

 private:
  struct Threads {
    explicit Threads(int count) : Threads(static_cast<size_t>(count) + 1) {}
    explicit Threads(size_t all) : turns(all), threads(all) {}
    Turns turns;  // guarded by mutex_
    asio::thread_pool threads;
  };

  // Runs waiting work until none may run. If more may run than this thread can take, it calls another thread: one end
  // may make room for two, and the others may have found nothing before.
  void run(Threads& lane) {
    std::unique_lock lock(mutex_);
    for (Turns::Turn turn = lane.turns.next(); turn.work; turn = lane.turns.next()) {
      const bool more = lane.turns.has_next();
      lock.unlock();
      if (more) asio::post(lane.threads, [this, &lane] { run(lane); });
      turn.work();
      turn.work = nullptr;  // its data are freed without the lock
      lock.lock();
      lane.turns.done(turn);
      --pending_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int pending_ = 0;               // guarded by mutex_
  std::array<Threads, 5> lanes_;  // the last one ends first
};

}  // namespace volley::serve::transport
