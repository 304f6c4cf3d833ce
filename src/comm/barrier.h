// Where the threads of a group wait for one another.
#pragma once

#include <atomic>
#include <cstdint>

namespace volley::comm {

// Threads: wait() by `threads` threads, each as often as the others; abort() from any.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}

  // Until all have come; what they wrote before it is seen after it. False, to all of them: abort() was called before
  // all had come.
  bool wait();
  // Waits that are not over end, and later ones do not begin. `who` is kept of the first call.
  void abort(int who);
  // Who aborted; -1: nobody so far.
  int aborted_by() const { return who_.load(std::memory_order_acquire); }

 private:
  const uint32_t threads_;
  // How many have come (the lower 16 bits), how often all have (15 bits, which may wrap around), and whether it was
  // aborted. One word, so that of an abort and the last one's coming only one can be first.
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<int> who_{-1};
};

}  // namespace volley::comm
