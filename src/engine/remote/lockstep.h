// Runs the passes of replicas that divide a target's experts together: pass k of one is pass k of all. No barrier
// stands before a pass. A replica with work begins a pass. A replica that has begun fewer passes than another, and has
// no work, runs passes without rows until it has caught up.
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

// Threads: any; calls for one replica's passes come one at a time.
class Lockstep {
 public:
  // Each replica calls prepare() of its own exchange.
  explicit Lockstep(comm::RowExchanges exchanges);

  int replicas() const { return static_cast<int>(members_.size()); }
  comm::RowExchange& exchange(int replica) { return *exchanges_[static_cast<size_t>(replica)]; }

  // Says that the replica runs its next pass now.
  void begin(int replica);
  // Whether other replicas have begun more passes. Takes no lock.
  bool behind(int replica) const;
  // Sets the callback for when the replica falls behind. It runs on a thread that begins a pass, under a lock that
  // begin(), leave() and this take. An empty callback removes it; returns when no call is running.
  void watch(int replica, std::function<void()> on_behind);

  // The replica begins no pass by itself until enter(); it continues with wait().
  void leave(int replica);
  void enter(int replica);
  // Waits. True: the replica is behind. False: all replicas have left and it is not behind, or one has aborted.
  bool wait(int replica);

  // Removes a replica that has failed or ends before the others, whose passes then throw DeviceFault.
  void abort(int replica);
  int aborted_by();  // the first replica that aborted; -1: none

 private:
  struct Member {
    std::atomic<uint64_t> begun{0};  // passes begun; changed under mutex_
    std::function<void()> on_behind;
    bool left = false;
  };

  bool all_left() const;

  const comm::RowExchanges exchanges_;
  std::atomic<uint64_t> most_begun_{0};  // changed under mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  int aborted_by_ = -1;          // guarded by mutex_
  std::vector<Member> members_;  // guarded by mutex_, except `begun`
};

// A replica's place in a lockstep. Without a lockstep the replica has all of the target's experts.
struct LockstepPlace {
  std::shared_ptr<Lockstep> with;
  int replica = 0;

  explicit operator bool() const { return with != nullptr; }
  bool behind() const { return with != nullptr && with->behind(replica); }
};

}  // namespace volley::engine
