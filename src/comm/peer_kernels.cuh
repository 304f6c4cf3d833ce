// Kernels by which GPUs exchange floats. Every float is its own message: a rank stores it into the others' mailboxes
// over the value kEmpty, and they poll until no expected float is kEmpty. So there are neither flags nor fences, and
// data crosses the link once.
//
// A mailbox must be empty when a kernel's messages arrive. Kernel n of each rank uses mailbox n % 3. Rank A empties
// mailbox (n - 1) % 3 in its kernel n: A has read all messages of kernel n - 1 by then, and the next ones to arrive
// there are those of kernel n + 2. They arrive after the emptying, by this chain of events:
//   A's kernel n ends, and with it the emptying;
//   A sends its messages of kernel n + 1;
//   B's kernel n + 1, which waits for them, ends;
//   B sends its messages of kernel n + 2.
// The chain has two conditions. No rank ends a kernel before all ranks have ended the one before: messages from each
// rank to each ensure that, and so do messages from each to one and from that one to each. And a kernel accesses no
// memory before earlier kernels of its stream have ended. Grids and blocks may differ from kernel to kernel and from
// rank to rank.
//
// A product that runs between kernel n and kernel n + 1 may send the messages of kernel n + 1 (ops::SentSums), because
// it sends them after the end of kernel n, as kernel n + 1 would. Kernel n + 1 may then run beside the product. It adds
// itself to the count of kernels only after the product has ended, so the product reads one count throughout. Other
// ranks cannot tell which of the two has sent.
//
// All threads send before they wait. So no thread waits for a block that cannot run, if all blocks of a rank fit on its
// GPU while others wait: grids are at most as large as the GPU.
#pragma once

#include "comm/peer_layout.h"
#include "device/cuda/dependent.cuh"
#include "device/cuda/messages.cuh"
#include "ops/linear/row_summaries.h"

namespace volley::comm {

// The ranks' memory, as seen from this rank.
struct Peers {
  char* memory[kMostPeers];
  const uint32_t* aborted;  // host memory: not 0 once the group is aborted
  int rank;
};

inline constexpr int kPeerThreads = 512;  // most threads of a block

namespace peer {

using cuda::kEmpty, cuda::Pack, cuda::send, cuda::sendable;

template <int V>
__device__ inline Pack<V> load(const float* from) {
  Pack<V> p;
  if constexpr (V == 4) {
    const uint4 u = *reinterpret_cast<const uint4*>(from);
    p = {{u.x, u.y, u.z, u.w}};
  } else {
    p.bits[0] = __float_as_uint(*from);
  }
  return p;
}

template <int V>
__device__ inline void store(float* to, const Pack<V>& p) {
  if constexpr (V == 4) {
    *reinterpret_cast<uint4*>(to) = make_uint4(p.bits[0], p.bits[1], p.bits[2], p.bits[3]);
  } else {
    *to = __uint_as_float(p.bits[0]);
  }
}

// Reads past the multiprocessor's cache.
template <int V>
__device__ inline Pack<V> look(const float* from) {
  Pack<V> p;
  if constexpr (V == 4) {
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p.bits[0]), "=r"(p.bits[1]), "=r"(p.bits[2]), "=r"(p.bits[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
  } else {
    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];"
                 : "=r"(p.bits[0])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
  }
  return p;
}

template <int V>
__device__ inline bool whole(const Pack<V>& p) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < V; ++i) all = all && p.bits[i] != kEmpty;
  return all;
}

template <int V>
__device__ inline Pack<V> empty() {
  Pack<V> p;
#pragma unroll
  for (int i = 0; i < V; ++i) p.bits[i] = kEmpty;
  return p;
}

template <int V>
__device__ inline Pack<V> sum(const Pack<V>& a, const Pack<V>& b) {
  Pack<V> p;
#pragma unroll
  for (int i = 0; i < V; ++i) p.bits[i] = __float_as_uint(__uint_as_float(a.bits[i]) + __uint_as_float(b.bits[i]));
  return p;
}

// Adds all ranks' values: neighbours first, then neighbouring sums (comm.h).
template <int kRanks, int V>
__device__ inline Pack<V> sum_in_pairs(Pack<V> (&parts)[kRanks]) {
#pragma unroll
  for (int step = 1; step < kRanks; step *= 2) {
#pragma unroll
    for (int r = 0; r + step < kRanks; r += 2 * step) parts[r] = sum(parts[r], parts[r + step]);
  }
  return parts[0];
}

// A kernel's turn, as seen by one of its threads.
struct Turn {
  PeerHeader* header;
  const uint32_t* aborted;
  PeerBlock before;
  bool gone;  // aborted: no thread waits any more, and results are invalid
  uint32_t looks = 0;

  // Called when the turn before has ended.
  __device__ explicit Turn(const Peers& peers)
      : header(reinterpret_cast<PeerHeader*>(peers.memory[peers.rank])),
        aborted(peers.aborted),
        before(read_past_cache(header->blocks + blockIdx.x)),
        gone(*static_cast<volatile uint32_t*>(&header->gone) != 0) {}

  __device__ static PeerBlock read_past_cache(const PeerBlock* from) {
    const longlong2 bits = __ldcg(reinterpret_cast<const longlong2*>(from));
    return {static_cast<uint64_t>(bits.x), bits.y};
  }

  // A rank's mailbox of this turn, or of `later` turns after it.
  __device__ float* mailbox(const Peers& peers, int rank, int later = 0) const {
    const auto index = static_cast<int64_t>((before.kernels + static_cast<uint64_t>(later)) % kMailboxes);
    return reinterpret_cast<float*>(peers.memory[rank] + sizeof(PeerHeader) + index * kMailboxBytes);
  }

  // Empties the mailbox of the turn before.
  __device__ void empty_last(const Peers& peers) const {
    auto* box = reinterpret_cast<uint4*>(mailbox(peers, peers.rank, kMailboxes - 1));
    const int n = static_cast<int>((before.used + 3) / 4);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
      box[i] = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);
    }
  }

  // Polls from(i) for each p[i] that is not whole, all of them together, until all are. A rank may be far behind, so
  // only an abort limits the wait.
  template <int V, int N, typename From>
  __device__ void await(Pack<V> (&p)[N], const From& from) {
    while (!gone) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (!whole(p[i])) p[i] = look<V>(from(i));
      }
      bool all = true;
#pragma unroll
      for (int i = 0; i < N; ++i) all = all && whole(p[i]);
      if (all) return;
      if (++looks % 1024 == 0) look_up();
    }
  }
  template <int V>
  __device__ Pack<V> await(const float* from) {
    Pack<V> p[1] = {empty<V>()};
    await(p, [&](int) { return from; });
    return p[0];
  }

  // The host's memory is far away: threads read it seldom, and the first to see an abort tells the others.
  __device__ void look_up() {
    volatile uint32_t* known = &header->gone;
    if (*known == 0 && looks % (16 * 1024) == 0 && *static_cast<const volatile uint32_t*>(aborted) != 0) *known = 1;
    gone = *known != 0;
    if (looks > 64 * 1024) __nanosleep(200);
  }

  // Ends the turn, in which `used` floats of the mailbox were used. Each block writes a record of its own, which only
  // it reads in the next turn. The first block also writes the records of blocks that this grid lacks and the next may
  // have.
  __device__ void end(int64_t used) const {
    __syncthreads();  // all of the block have read `before`
    const PeerBlock now = {before.kernels + 1, used};
    if (threadIdx.x == 0) header->blocks[blockIdx.x] = now;
    if (blockIdx.x != 0) return;
    for (int b = gridDim.x + threadIdx.x; b < kMostPeerBlocks; b += blockDim.x) header->blocks[b] = now;
  }
};

// The sum of the ranks' addends of a pack. They lie `apart` in the mailbox from `from` on; the rank's own addend is not
// there.
template <int kRanks, int V>
__device__ inline Pack<V> sum_of_ranks(Turn& turn, int rank, const Pack<V>& own, const float* from, int apart) {
  Pack<V> parts[kRanks];
#pragma unroll
  for (int r = 0; r < kRanks; ++r) parts[r] = r == rank ? own : empty<V>();
  turn.await(parts, [&](int r) { return from + r * apart; });
  return sum_in_pairs(parts);
}

// x[i] += the ranks' partial[i], i < count. All send all to all.
template <int kRanks, int V>
__global__ void __launch_bounds__(kPeerThreads)
    sum_kernel(const __grid_constant__ Peers peers, const float* partial, float* x, int count) {
  cuda::wait_for_predecessors();
  Turn turn(peers);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < count; i += step) {
    const Pack<V> p = sendable(load<V>(partial + i));
    for (int r = 1; r < kRanks; ++r) {
      send<V>(turn.mailbox(peers, (peers.rank + r) % kRanks) + peers.rank * count + i, p);
    }
  }
  cuda::launch_dependents();
  turn.empty_last(peers);
  const float* box = turn.mailbox(peers, peers.rank);
  for (int i = first; i < count; i += step) {
    const Pack<V> own = sendable(load<V>(partial + i)), old = load<V>(x + i);
    store<V>(x + i, sum(old, sum_of_ranks<kRanks>(turn, peers.rank, own, box + i, count)));
  }
  turn.end(int64_t{kRanks} * count);
}

// The same; rank r adds the r-th part of `part` floats and sends the sums. A mailbox has the addends of the own part,
// rank by rank, and then all sums.
template <int kRanks, int V>
__global__ void __launch_bounds__(kPeerThreads)
    sum_in_parts_kernel(const __grid_constant__ Peers peers, const float* partial, float* x, int count, int part) {
  cuda::wait_for_predecessors();
  Turn turn(peers);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  const int sums = kRanks * part, mine = peers.rank * part;
  for (int i = first; i < count; i += step) {
    const int owner = i / part;
    if (owner == peers.rank) continue;
    send<V>(turn.mailbox(peers, owner) + mine + (i - owner * part), sendable(load<V>(partial + i)));
  }
  cuda::launch_dependents();
  turn.empty_last(peers);
  const float* box = turn.mailbox(peers, peers.rank);
  for (int j = first; j < part && mine + j < count; j += step) {
    const int i = mine + j;
    const Pack<V> own = sendable(load<V>(partial + i)), old = load<V>(x + i);
    const Pack<V> all = sum_of_ranks<kRanks>(turn, peers.rank, own, box + j, part);
    const Pack<V> sent = sendable(all);
    for (int r = 1; r < kRanks; ++r) send<V>(turn.mailbox(peers, (peers.rank + r) % kRanks) + sums + i, sent);
    store<V>(x + i, sum(old, all));
  }
  for (int i = first; i < count; i += step) {
    if (i / part == peers.rank) continue;
    const Pack<V> old = load<V>(x + i);
    store<V>(x + i, sum(old, turn.await<V>(box + sums + i)));
  }
  turn.end(int64_t{sums} + count);
}

// Floats that the summaries of so many outputs take.
__device__ inline int summary_floats(int outputs) {
  return (outputs + ops::kSummaryGroup - 1) / ops::kSummaryGroup * 4;
}

// Whether any of so many rows is whole; null: all are. All threads of a block call it.
__device__ inline bool any_whole(const uint8_t* whole, int rows) {
  bool any = whole == nullptr;
  for (int row = threadIdx.x; row < rows && !any; row += blockDim.x) any = whole[row] != 0;
  return __syncthreads_or(any) != 0;
}

// out[row, begin + c] = mine[row, c] of every rank, each with its own `begin` and number of columns. Rows that are not
// `whole` (null: all are) gather their summaries instead. The kernel also waits for ranks without columns: after the
// rows a mailbox has one float of each rank.
//
// The host does not know `whole`, so it cuts a call into as many kernels as whole rows need. This one is number `part`.
// It gathers `most_whole` rows, or `most_summaries` if the call has only summaries. If no rows are left for it, the
// kernel takes no turn on any rank; but it still waits for the kernel before, because the next kernel cannot know
// whether this one took a turn.
template <int kRanks, int V>
__global__ void __launch_bounds__(kPeerThreads)
    gather_kernel(const __grid_constant__ Peers peers, const float* mine, int columns, int begin, float* out, int rows,
                  int width, const uint8_t* whole, int part, int most_whole, int most_summaries) {
  cuda::wait_for_predecessors();
  const int most = any_whole(whole, rows) ? most_whole : most_summaries;
  const int64_t skipped = int64_t{part} * most;
  if (skipped >= rows) return;
  rows = min(most, rows - static_cast<int>(skipped));
  mine += skipped * columns;
  out += skipped * width;
  if (whole != nullptr) whole += skipped;
  Turn turn(peers);
  const bool wide = any_whole(whole, rows);
  // The floats of a row in the mailbox, and this rank's part of them. Without a whole row there is only room for
  // summaries.
  const int span = wide ? width : summary_floats(width), own = wide ? columns : summary_floats(columns);
  const auto summarised = [&](int row) { return whole != nullptr && whole[row] == 0; };
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < rows * own; i += step) {
    const int row = i / own, c = i - row * own;
    Pack<V> p = load<V>(mine + row * columns + c);
    int at = begin + c;
    if (summarised(row)) {
      if (c >= summary_floats(columns)) continue;
      if constexpr (V == 4) p.bits[1] += static_cast<uint32_t>(begin);  // GroupSummary::output
      at = summary_floats(begin) + c;
    }
    p = sendable(p);
    for (int r = 1; r < kRanks; ++r) send<V>(turn.mailbox(peers, (peers.rank + r) % kRanks) + row * span + at, p);
    store<V>(out + row * width + at, p);
  }
  const int other = blockIdx.x == 0 && threadIdx.x < kRanks ? static_cast<int>(threadIdx.x) : peers.rank;
  if (other != peers.rank) send<1>(turn.mailbox(peers, other) + rows * span + peers.rank, Pack<1>{{0}});
  cuda::launch_dependents();
  turn.empty_last(peers);
  const float* box = turn.mailbox(peers, peers.rank);
  if (other != peers.rank) turn.await<1>(box + rows * span + other);
  for (int i = first; i < rows * span; i += step) {
    const int row = i / span, at = i - row * span;
    const bool summary = summarised(row);
    if (summary && at >= summary_floats(width)) continue;
    const int column = at - (summary ? summary_floats(begin) : begin);
    if (column >= 0 && column < (summary ? summary_floats(columns) : columns)) continue;
    store<V>(out + row * width + at, turn.await<V>(box + row * span + at));
  }
  turn.end(int64_t{rows} * span + kRanks);
}

}  // namespace peer
}  // namespace volley::comm
