// The side of a node that is not node 0, or of a process that computes for an engine: the calls to replay, in order,
// and the answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "nodes/replies.h"

namespace volley::nodes {

// Threads: next() and reply() one at a time.
class Follower {
 public:
  // What has to be heard while a call is replayed. On a thread of the follower's.
  struct Hooks {
    // The masks of the step that is being replayed, or that will be next. An error ends the connection.
    std::function<Status(std::vector<uint32_t> words)> on_masks;
    // Node 0 is gone, or says what it must not: nobody must wait for its sums any more.
    std::function<void()> on_lost;
  };

  // on_lost: as Hooks has it, before that one, for as long as the follower lives. Throws std::system_error where the
  // system gives no thread.
  Follower(std::unique_ptr<net::Connection> leader, CallLimits limits, std::function<void()> on_lost = {});
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Before the first reply; empty functions: nobody hears any more, and no call is running.
  void set_hooks(Hooks hooks);

  // The next call; after End there is none. Never Masks. kUnavailable: node 0 is gone, with the reason.
  Result<Call> next();
  // kUnavailable: as next().
  Status reply(const Reply& reply);
  // That error, once node 0 is gone or the time is over; none: it is there.
  std::optional<Error> lost_within(std::chrono::milliseconds time);

 private:
  void listen();
  Status hear(const net::Frame& frame, bool& ended);
  Status send(const Reply& reply);
  Error gone();

  const std::unique_ptr<net::Connection> leader_;
  const CallLimits limits_;
  const std::function<void()> on_lost_;
  std::mutex send_mutex_;  // of replies: also the thread below has one, when it gives up
  std::mutex hooks_mutex_;
  Hooks hooks_;  // guarded by hooks_mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Call, size_t>> calls_;  // with their bytes; guarded by mutex_
  size_t bytes_ = 0;                           // of these; guarded by mutex_
  std::string lost_;                           // guarded by mutex_; empty: it is there
  std::thread thread_;
};

}  // namespace volley::nodes
