// Where a product sends its sums instead of storing them to y: into the mailboxes of the ranks that add them. comm
// passes their addresses; comm/peer_kernels.cuh explains mailboxes.
//
// The kernel after such a product polls for the sums. It may start when all kernels before the product have ended and
// their writes are visible, and runs beside the product's end.
#pragma once

#include <cstdint>

namespace volley::ops {

// A rank's mailboxes lie one behind the other, and are used in turn.
inline constexpr int kMailboxes = 3;
inline constexpr int64_t kMailboxBytes = int64_t{16} << 20;
inline constexpr int64_t kMailboxFloats = kMailboxBytes / 4;

struct SentSums {
  // The number of turns so far, read from device memory, so that a recorded graph uses the mailbox whose turn it is
  // when it runs. Null: no sums are sent.
  const uint64_t* turns = nullptr;
  // Sums of rows side by side are cut into parts of so many, a multiple of 4, and each part has a place. 0: all sums go
  // to the first two places both.
  uint32_t part = 0;
  // Sum i of a place goes to its i-th float in the first mailbox; the other mailboxes follow in memory.
  float* to[8] = {};
};

// Most rows of a product that sends.
inline constexpr int64_t kMostSentRows = 128;

}  // namespace volley::ops
