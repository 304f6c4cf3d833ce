// Where a product sends its sums besides y, so that ranks which add them have them sooner: into mailboxes of other
// GPUs. What mailboxes are is written in comm/peer_kernels.cuh, and comm says where sums go.
#pragma once

#include <cstdint>

namespace volley::ops {

// A rank's mailboxes lie one behind the other, and are used in turn.
inline constexpr int kMailboxes = 3;
inline constexpr int64_t kMailboxBytes = int64_t{16} << 20;
inline constexpr int64_t kMailboxFloats = kMailboxBytes / 4;

// Sum i of y, counted from its begin, goes to a place that `to` says for its part of `part` neighbours.
struct SentSums {
  // How many turns have been, in device memory and read there, so that a recorded graph uses the mailbox whose turn it
  // is when it runs. Null: no sums are sent.
  const uint64_t* turns = nullptr;
  // Of each part: where sum 0 would lie if it were of this part and the first mailbox were used. Null: the part is not
  // sent.
  float* to[8] = {};
  uint32_t part = 0;  // a multiple of 4; 0: all sums are one part
};

// Most rows of a product that sends.
inline constexpr int64_t kMostSentRows = 128;

}  // namespace volley::ops
