// Where a product sends its sums instead of storing them to y: into the mailboxes of the ranks that add them. comm says
// where those are, and comm/peer_kernels.cuh what.
//
// The kernel behind such a product waits for the sums themselves. It may start when all kernels before the product have
// ended and their writes are there, and runs beside the product's end.
#pragma once

#include <cstdint>

namespace volley::ops {

// A rank's mailboxes lie one behind the other, and are used in turn.
inline constexpr int kMailboxes = 3;
inline constexpr int64_t kMailboxBytes = int64_t{16} << 20;
inline constexpr int64_t kMailboxFloats = kMailboxBytes / 4;

struct SentSums {
  // How many turns have been, in device memory and read there, so that a recorded graph uses the mailbox whose turn it
  // is when it runs. Null: no sums are sent.
  const uint64_t* turns = nullptr;
  // Sums of rows side by side are cut into parts of so many, a multiple of 4, and each part has a place. 0: all sums go
  // to the first two places both.
  uint32_t part = 0;
  // Sum i of a place goes to its i-th float, if the first mailbox is used; the other mailboxes follow.
  float* to[8] = {};
};

// Most rows of a product that sends.
inline constexpr int64_t kMostSentRows = 128;

}  // namespace volley::ops
