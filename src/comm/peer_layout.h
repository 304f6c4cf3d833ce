// The mailboxes in the device memory of a rank on a GPU, and how calls are divided into kernels. Plain numbers, which
// dry runs use too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/math.h"
#include "ops/linear/cuda/sent_sums.h"

namespace volley::comm {

inline constexpr int kMostPeers = 8;
inline constexpr int kMostPeerBlocks = 256;  // most blocks of a kernel's grid

// Mailboxes, used in turn: one is being written, one may still be read by a rank that is behind, one is being emptied.
using ops::kMailboxBytes, ops::kMailboxes, ops::kMailboxFloats;

// The state that a block carries over from the kernel before.
struct alignas(16) PeerBlock {
  uint64_t kernels = 0;  // so far: the next one uses mailbox kernels % kMailboxes
  int64_t used = 0;      // floats that the last kernel used, from its mailbox's begin on
};
// At the begin of a rank's memory; the mailboxes follow.
struct PeerHeader {
  PeerBlock blocks[kMostPeerBlocks];
  uint32_t gone = 0;         // a kernel of this rank has seen that the group is aborted
  uint32_t unused[31] = {};  // so that mailboxes begin at a multiple of 128 bytes
};
inline constexpr int64_t kPeerBytes = int64_t{sizeof(PeerHeader)} + kMailboxes * kMailboxBytes;

// A sum is made in one of two ways, with the same bits. Either every rank sends all its addends to all, and all add. Or
// each rank adds a part and sends the sums: that is less data, but two steps.
struct SumCut {
  bool in_parts = false;
  int64_t chunk = 0;  // floats of a kernel, but of the last
  // Floats of a rank's part of `count`.
  static int64_t part(int64_t count, int ranks) { return round_up(divide_up(count, ranks), 4); }
};

// From so many bytes, all ranks' addends together, a sum of more than two ranks is made in parts. Measured on four
// GPUs, which take 5.5 us for that many in parts and 6.1 whole.
inline constexpr int64_t kInPartsBytes = int64_t{1} << 20;

inline SumCut cut_sum(int64_t count, int ranks, int64_t in_parts_bytes) {
  if (ranks > 2 && count * 4 * ranks >= in_parts_bytes) return {true, kMailboxFloats / 2};
  return {false, kMailboxFloats / ranks / 4 * 4};
}

inline int64_t sum_kernels(int64_t count, int ranks, int64_t in_parts_bytes) {
  return divide_up(count, cut_sum(count, ranks, in_parts_bytes).chunk);
}

// Whether a sum of rows of n floats and the norm after it are one kernel. Each block has a row, and all must run at
// once: `room` is how many can.
inline constexpr int64_t kMostNormedRows = 128, kLongestNormed = 8192;
static_assert(2 * kMostNormedRows * kLongestNormed + 4 * kMostPeers <= kMailboxFloats);
static_assert(std::size(ops::SentSums{}.to) == kMostPeers);

inline bool sums_and_norms(int64_t rows, int64_t n, int ranks, int64_t room) {
  return ranks > 1 && rows > 0 && rows <= std::min(kMostNormedRows, room) && n % 4 == 0 && n <= kLongestNormed;
}

// Rows of `floats` that a kernel gathers, with a float of each rank beside them. REQUIRES: at least one fits. There are
// as many kernels as whole rows need; where all rows are summaries, the first kernels gather them and the others do
// nothing.
inline int64_t gathered_rows(int64_t floats) {
  return (kMailboxFloats - kMostPeers) / floats;
}

}  // namespace volley::comm
