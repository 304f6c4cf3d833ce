// How the ranks of one process get the partials of those in others: over TCP, while all ranks of all processes make the
// same call. This file only moves bytes; cpu_group.cc adds them.
#pragma once

#include <vector>

#include "comm/comm.h"

namespace volley::comm {

// Floats of a rank that are sent at a time, and that buffers hold.
inline constexpr int64_t kNodeChunk = int64_t{1} << 20;

// Threads: shut_down() from any, everything else by one.
class NodeExchange {
 public:
  // Ranks [first, first + local) are in this process, the others at the far ends of `links`.
  NodeExchange(std::vector<NodeLink> links, int ranks, int first, int local);

  // Bytes of memory that run() receives into, of a group whose other processes have so many ranks.
  static int64_t bytes(int remote) { return remote * kNodeChunk * int64_t{sizeof(float)}; }
  void set_memory(float* memory) { memory_ = memory; }  // borrowed

  enum class Kind : uint32_t { kSum = 1, kColumns = 2 };
  // A part of a call: [rows, columns] of each rank.
  struct Part {
    Kind kind = Kind::kSum;
    int64_t rows = 0;
    // Each rank has exactly so many columns with kSum, and at most so many with kColumns. REQUIRES: rows * columns <=
    // kNodeChunk.
    int64_t columns = 0;
  };
  // Sends `mine` (this process's ranks, in order) to all other processes, and receives theirs. A failure is kept.
  void run(const Part& part, std::span<const std::span<const float>> mine);

  // The data that run() received from a rank elsewhere, valid until the next run().
  std::span<const float> received(int rank) const { return received_[static_cast<size_t>(rank)]; }

  // Why run() failed, and the first rank of the process that failed; -1: no failure.
  int failed_rank() const { return failed_rank_; }
  const std::string& failure() const { return failure_; }

  // Ends a run() that waits, and later ones, here and in the processes at the other ends.
  void shut_down();

 private:
  struct Head;

  void exchange(const Part& part, std::span<const std::span<const float>> mine);

  const std::vector<NodeLink> links_;
  const int first_, local_;
  float* memory_ = nullptr;
  std::vector<int64_t> memory_begin_;  // begin of each other rank's memory, in floats
  std::vector<std::span<const float>> received_;
  uint64_t calls_ = 0;
  int failed_rank_ = -1;
  std::string failure_;
};

}  // namespace volley::comm
