// State that the members of a group on GPUs of this process share, where each member's memory is written and read by
// all: the memory, the abort flag, and a thread that checks whether their GPUs have failed. Ranks (peer_group_cuda.cu)
// and replicas (row_exchange_cuda.cu) are such members. For CUDA files alone.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/gpu_claim.h"
#include "device/device.h"

namespace volley::comm {

// The words for a member in messages.
struct PeerWords {
  const char* member;   // "Rank"
  const char* option;   // the option that requires the group
  const char* instead;  // advice for GPUs that are not linked
};

// Threads: prepare() and peers' memory by the member's own thread; leave(), abort() and check() from any. Destroyed
// with the last member.
class PeerShared {
 public:
  // A member on each of these GPUs. kUnavailable where they cannot reach each other's memory; kFailedPrecondition where
  // a living group has two of them, or kernels load late.
  static Result<std::shared_ptr<PeerShared>> make(const std::vector<int>& gpus, const PeerWords& words);
  ~PeerShared();
  PeerShared(const PeerShared&) = delete;
  PeerShared& operator=(const PeerShared&) = delete;

  // Allocates the member's memory, which all may use then.
  Status prepare(int member, Device& device, int64_t bytes);
  // From now on the thread checks the member's stream for faults.
  Status watch(int member, const Stream& stream);
  // As abort(), before the member's stream is destroyed.
  void leave(int member);

  void abort(int member);
  void check() const;  // throws PeerLost once a member has aborted

  int members() const { return static_cast<int>(gpus_.size()); }
  int gpu(int member) const { return gpus_[static_cast<size_t>(member)]; }
  // The number of members on this one's GPU.
  int sharing(int member) const;
  char* memory(int member) const;  // REQUIRES: prepare()
  bool prepared(int member) const { return members_[static_cast<size_t>(member)].memory.data() != nullptr; }
  const uint32_t* aborted() const { return aborted_; }  // pinned, for all GPUs: 0, or 1 + the member that aborted first

 private:
  struct Member {
    Buffer memory;
    cudaStream_t stream = nullptr;             // guarded by mutex_; null: not checked
    std::atomic<const char*> fault = nullptr;  // CUDA's words for why it was aborted
  };

  PeerShared(const std::vector<int>& gpus, const PeerWords& words, std::unique_ptr<GpuClaim> claim);

  void look();

  const std::unique_ptr<GpuClaim> claim_;
  const std::vector<int> gpus_;
  const PeerWords words_;
  std::vector<Member> members_;
  uint32_t* aborted_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread watcher_;
};

}  // namespace volley::comm
