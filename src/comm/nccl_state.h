// The state that the ranks of one process share in a group over NCCL: their communicators, which ranks are gone, and
// the shutdown.
//
// NCCL's rules: a communicator is used by one thread at a time. When a rank has failed, every other one must abort its
// own communicator, which ends the kernels that wait. An abort waits until recorded graphs are destroyed, and frees
// nothing before all communicators of a process are aborted. So each rank has a thread that looks for faults and aborts
// the communicator once a rank is gone; that thread is joined when all ranks of the process have left. It makes no CUDA
// call before the abort, because such a call may wait for the GPU, and so for the abort.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/comm.h"
#include "comm/nccl_api.h"

namespace volley::comm {

// Threads: abort(), check() and throw_if_gone() from any; a function with a rank argument by that rank's thread.
class NcclState : public std::enable_shared_from_this<NcclState> {
 public:
  // Ranks [first, first + gpus.size()) of `ranks`.
  NcclState(const NcclApi& api, int ranks, int first, const std::vector<int>& gpus, std::vector<NodeLink> links);
  NcclState(const NcclState&) = delete;
  NcclState& operator=(const NcclState&) = delete;

  const NcclApi& api() const { return api_; }
  int ranks() const { return ranks_; }
  int gpu(int rank) const { return member(rank).gpu; }

  // Starts looking for faults, at the connections to other processes and at NCCL. kResourceExhausted: the system has no
  // thread left.
  Status watch(int rank);
  // Returns when all ranks have initialised. Errors as Communicator::prepare().
  Status join(int rank, const NcclUniqueId& id);
  // Memory that kernels of NCCL may use for as long as there is a communicator.
  float* keep(int rank, Buffer memory);

  // Calls f(communicator), which returns an NcclResult. Throws DeviceFault for an error, or if a rank is gone.
  template <typename F>
  void call(int rank, const F& f) {
    Member& m = member(rank);
    NcclResult result = NcclResult::kSuccess;
    bool there = false;
    {
      const std::lock_guard lock(m.calls);
      there = m.comm != nullptr;
      if (there) result = f(m.comm);
    }
    if (!there) {
      throw_if_gone();
      VOLLEY_CHECK_MSG(there, "a rank has not prepared");
    }
    if (result != NcclResult::kSuccess) fail(rank, result);
  }

  // The first call counts. cause: the known cause, or empty.
  void abort(int rank, std::string cause = "");
  void throw_if_gone() const;
  void check(int rank);  // Communicator::check()

  // Joins the threads that watch() started; they end because the group is aborted. REQUIRES: no graph of these
  // communicators exists. Returns after ten seconds at the latest, and abandons threads that have not ended.
  void finish();

 private:
  struct Member {
    int gpu = 0;
    Buffer memory;
    std::timed_mutex calls;    // held for calls of NCCL with the communicator
    NcclComm* comm = nullptr;  // guarded by `calls`
    bool ended = false;        // the communicator is aborted, or will never be; guarded by `calls`
    int remote_errors = 0;     // consecutive looks of `thread` that saw an error of another rank; its own
    std::thread thread;
    bool over = true;  // guarded by mutex_: the thread must end
  };

  Member& member(int rank) { return *members_[static_cast<size_t>(rank - first_)]; }
  const Member& member(int rank) const { return *members_[static_cast<size_t>(rank - first_)]; }
  int gone() const { return gone_.load(std::memory_order_acquire); }
  bool gone_within(std::chrono::milliseconds time) const;
  [[noreturn]] void fail(int rank, NcclResult result);
  NcclResult async_error(Member& m) const;
  void run(int rank);
  void look(int rank);
  void end_communicator(Member& m) const;

  const NcclApi& api_;
  const int ranks_, first_;
  const std::vector<NodeLink> links_;
  std::vector<std::unique_ptr<Member>> members_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<int> gone_{-1};  // the rank that aborted first; -1: none so far
  std::string cause_;          // guarded by mutex_
};

}  // namespace volley::comm
