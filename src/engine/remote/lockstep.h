// Replicas that divide the experts of a target among them run its passes together: pass k of one is pass k of all. No
// barrier stands before a pass. Whoever has something to compute begins it; whoever has begun fewer passes than
// another, and has no work of its own, runs passes without rows until it has caught up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/row_exchange.h"

namespace volley::engine {

// Threads: any; what concerns one replica's passes, by one at a time.
class Lockstep {
 public:
  // prepare() of each exchange is called by whoever takes it.
  explicit Lockstep(comm::RowExchanges exchanges);

  int replicas() const { return static_cast<int>(members_.size()); }
  comm::RowExchange& exchange(int replica) { return *exchanges_[static_cast<size_t>(replica)]; }

  // The replica is about to run its next pass.
  void begin(int replica);
  // Whether others have begun more. No lock is taken.
  bool behind(int replica) const;
  // Called when the replica falls behind, from a thread that begins a pass, under a lock that begin(), leave() and this
  // take. Empty: nobody; returns when no call is running.
  void watch(int replica, std::function<void()> on_behind);

  // The replica begins no pass by itself any more, and is to go on with wait(); enter() takes that back.
  void leave(int replica);
  void enter(int replica);
  // Until the replica is behind: true. False: all have left and it is not, or somebody has aborted.
  bool wait(int replica);

  // The replica takes part no more, because it has failed or ends before the others: passes of theirs throw
  // DeviceFault.
  void abort(int replica);
  int aborted_by();  // the first that did; -1: nobody so far

 private:
  struct Member {
    std::atomic<uint64_t> begun{0};  // passes; changed under mutex_
    std::function<void()> on_behind;
    bool left = false;
  };

  bool all_left() const;

  const comm::RowExchanges exchanges_;
  std::atomic<uint64_t> most_begun_{0};  // changed under mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  int aborted_by_ = -1;          // guarded by mutex_
  std::vector<Member> members_;  // but for `begun`, guarded by mutex_
};

// Which replica of a lockstep one is. Without any, all of the target's experts are its own.
struct LockstepPlace {
  std::shared_ptr<Lockstep> with;
  int replica = 0;

  explicit operator bool() const { return with != nullptr; }
  bool behind() const { return with != nullptr && with->behind(replica); }
};

}  // namespace volley::engine
