// A barrier for the threads of a group.
#pragma once

#include <atomic>
#include <cstdint>

namespace volley::comm {

// Threads: wait() by `threads` threads, each equally often; abort() from any.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}

  // Blocks until all threads call wait(); each then sees what the others wrote before. Returns false on all of them if
  // abort() came first.
  bool wait();
  // Ends the waits under way and all later ones. The `who` of the first call is kept.
  void abort(int who);
  // The `who` of the first abort(); -1 before that.
  int aborted_by() const { return who_.load(std::memory_order_acquire); }

 private:
  const uint32_t threads_;
  // Waiting threads (the lower 16 bits), how often all have arrived (15 bits, which may wrap around), and whether the
  // barrier was aborted. One word, so that either an abort or the last thread's arrival is first.
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<int> who_{-1};
};

}  // namespace volley::comm
