// Node 0's side: the other nodes replay its calls, and reply where node 0 needs an answer. Only a call that can be
// refused costs a round trip; all others are sent along with the next step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "nodes/replies.h"

namespace volley::nodes {

// Threads: watch() from any; everything else one at a time. Calls throw DeviceFault once a node is gone.
class Leader {
 public:
  // nodes: connections to nodes 1, 2, …. Throws DeviceFault where the system gives no threads.
  explicit Leader(std::vector<std::unique_ptr<net::Connection>> nodes);
  ~Leader();  // without an earlier end(), the others end with an error
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // The callback is called at most once, with a sentence, when a node is gone: on a thread of the leader's, or, if one
  // is gone already, on this thread before this returns. It replaces the callback set before; empty: none. On return no
  // old callback is running.
  void watch(std::function<void(const std::string&)> on_lost);
  // The sentence for watch(), once a node is gone or the time is over; empty: no node is gone.
  std::string lost_within(std::chrono::milliseconds time);

  // Waits until all other nodes have loaded, and adds up their replies. kUnavailable: one has failed, with its
  // sentence.
  Result<Ready> ready();

  // Queued until flush(), or a later call that sends.
  void tell(const decode::Command& command);
  void flush();
  // The reply of all nodes, once for each command with decode::is_answered() except Wait: the first refusal, else
  // `own`, this node's.
  decode::Answer answers(decode::Answer own);
  void masks(std::span<const uint32_t> words);
  // From each node, for the oldest step that was waited for.
  std::vector<Report> reports();

  // Ends the other nodes in order. No call may follow.
  void end();

 private:
  struct Node {
    std::unique_ptr<net::Connection> connection;
    std::deque<Reply> replies;  // guarded by mutex_
    bool listens = true;        // guarded by mutex_: the node's thread runs
    std::thread thread;
  };

  void listen(size_t node);
  std::string hear(size_t node);
  void lose(size_t node, const std::string& why);
  void end_threads();
  template <typename T>
  T take(size_t node);
  [[noreturn]] void throw_other_answer(size_t node);

  Bytes out_;  // to be sent
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Node> nodes_;
  std::string lost_;     // guarded by mutex_; empty: all nodes are there
  bool ending_ = false;  // guarded by mutex_
  std::mutex watch_mutex_;
  std::function<void(const std::string&)> on_lost_;  // guarded by watch_mutex_
  bool told_ = false;                                // on_lost_ was called; guarded by watch_mutex_
};

}  // namespace volley::nodes
