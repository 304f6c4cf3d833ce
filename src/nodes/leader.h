// Node 0's side: the other nodes replay its calls, and answer where it must know. A call costs a round trip only where
// it can be refused; everything else is sent along with the next step.
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

// Threads: watch() any; everything else one at a time. Calls throw DeviceFault once a node is gone.
class Leader {
 public:
  // nodes: connections to nodes 1, 2, …. Throws DeviceFault where the system gives no threads.
  explicit Leader(std::vector<std::unique_ptr<net::Connection>> nodes);
  ~Leader();  // without end() before, the others end with an error
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // Called at most once, on a thread of the leader's, when a node is gone, with a sentence; on this thread, before it
  // returns, if one is already. Takes the place of the one before; empty: nobody is called. Returns when no call is
  // running.
  void watch(std::function<void(const std::string&)> on_lost);
  // What watch() would say, once a node is gone or the time is over; empty: none is.
  std::string lost_within(std::chrono::milliseconds time);

  // All other nodes together, once they have loaded. kUnavailable: one has failed, with its sentence.
  Result<Ready> ready();

  // Answered by answers(), once for each: the first refusal, or none.
  void start_slot(int32_t slot, const spec::SlotStart& start);
  void reserve(std::span<const spec::RoundSegment> segments);
  Status answers();

  // Not answered.
  void clear_slot(int32_t slot);
  void set_page(int32_t slot, size_t group, int32_t index, PageId page);
  void save_state(int32_t slot, PageId snapshot);
  void restore_state(PageId snapshot, int32_t slot);
  void copy_page(size_t group, PageId from, PageId to);
  // `waits`: wait() will be the next call about steps, so that nodes do it at once.
  void enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget, bool waits);
  void masks(std::span<const uint32_t> words);
  // For a step that was enqueued without `waits`.
  void wait();
  // From each node, of the oldest step that was waited for.
  std::vector<Report> reports();

  // The others end in order. No call follows.
  void end();

 private:
  struct Node {
    std::unique_ptr<net::Connection> connection;
    std::deque<Reply> replies;  // guarded by mutex_
    bool listens = true;        // guarded by mutex_: its thread runs
    std::thread thread;
  };

  void listen(size_t node);
  std::string hear(size_t node);
  void lose(size_t node, const std::string& why);
  void end_threads();
  void append_done();
  void flush();
  template <typename T>
  T take(size_t node);

  Bytes out_;  // to be sent
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Node> nodes_;
  std::string lost_;     // guarded by mutex_; empty: all are there
  bool ending_ = false;  // guarded by mutex_
  std::mutex watch_mutex_;
  std::function<void(const std::string&)> on_lost_;  // guarded by watch_mutex_
  bool told_ = false;                                // on_lost_ was called; guarded by watch_mutex_
};

}  // namespace volley::nodes
