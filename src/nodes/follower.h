// The side of a node other than node 0, or of a process that computes for an engine: the calls to replay, in order, and
// the answers.
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
  // Messages that must be handled while a call is replayed. Called on a thread of the follower's.
  struct Hooks {
    // The masks of the step that is being replayed, or of the next. An error ends the connection.
    std::function<Status(std::vector<uint32_t> words)> on_masks;
    // Node 0 is gone, or broke the protocol: no thread must wait for its sums any more.
    std::function<void()> on_lost;
  };

  // on_lost: as in Hooks, called before that one, for the follower's life. Throws std::system_error if the system has
  // no thread left.
  Follower(std::unique_ptr<net::Connection> leader, CallLimits limits, std::function<void()> on_lost = {});
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Call before the first reply. Empty functions remove the hooks: they are not called any more, and no call is
  // running.
  void set_hooks(Hooks hooks);

  // The next call; no call follows End. Never Masks. kUnavailable: node 0 is gone, with the reason.
  Result<Call> next();
  // kUnavailable: as next().
  Status reply(Reply reply);
  // Waits for that error until node 0 is gone or the time is over; no value: node 0 is there.
  std::optional<Error> lost_within(std::chrono::milliseconds time);

 private:
  void listen();
  Status hear(const net::Frame& frame, bool& ended);
  Status send(Reply reply);
  Error gone();

  const std::unique_ptr<net::Connection> leader_;
  const CallLimits limits_;
  const std::function<void()> on_lost_;
  std::mutex send_mutex_;  // callers, and the thread below when it gives up, send replies
  std::mutex hooks_mutex_;
  Hooks hooks_;  // guarded by hooks_mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Call, size_t>> calls_;  // calls, with their bytes; guarded by mutex_
  size_t bytes_ = 0;                           // bytes of these calls; guarded by mutex_
  std::string lost_;                           // guarded by mutex_; empty while node 0 is there
  std::thread thread_;
};

}  // namespace volley::nodes
