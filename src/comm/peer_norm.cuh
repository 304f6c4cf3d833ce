// Sums of peer_kernels.cuh followed by a norm: a block has a whole row. With more than two ranks, blocks wait for sums
// that other blocks make, so all must run at once.
#pragma once

#include "comm/peer_kernels.cuh"
#include "ops/norm/norm_row.cuh"

namespace volley::comm::peer {

// The threads of a block: one for each chain of a row's sum. A thread then holds few packs, and polls all of them
// together.
inline constexpr int kNormThreads = ops::kChains;
// The least number of blocks: those without a row help to empty the last mailbox, which a gather may have filled.
inline constexpr int kNormHelpers = 64;

// x += the ranks' partial, `count` floats in all, and then the norm. With more than two ranks, rank r adds the r-th
// part of `part` floats and sends the sums, to itself, too: the block that has the row is not the one that adds.
//
// kSent: a product has sent `partial`, also to this rank, and may still run. Older kernels have ended, but this kernel
// has not waited for them, so it reads past the multiprocessor's cache.
template <int kRanks, int kVectors, bool kSent>
__global__ void __launch_bounds__(kNormThreads)
    sum_norm_kernel(const __grid_constant__ Peers peers, const float* partial, float* x, int count, int part,
                    const __grid_constant__ ops::NormArgs norm) {
  constexpr bool kInParts = kRanks > 2;
  const int row = static_cast<int>(blockIdx.x * norm.h), n = row < count ? static_cast<int>(norm.h) : 0;
  const auto column = [](int j) { return 4 * (static_cast<int>(threadIdx.x) + j * kNormThreads); };
  float4 weight[kVectors] = {}, old[kVectors] = {};  // no kernel writes weights: they come before the predecessor ends
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (column(j) < n) weight[j] = *reinterpret_cast<const float4*>(norm.weight + column(j));
  }
  if constexpr (!kSent) cuda::wait_for_predecessors();
  Turn turn(peers);
  const int sums = kRanks * part, mine = peers.rank * part;
  Pack<4> own[kVectors] = {};  // packs beyond the row are whole, and 0
  if constexpr (!kSent) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) < n) own[j] = sendable(load<4>(partial + row + column(j)));
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) >= n) break;
      const int i = row + column(j);
      if constexpr (kInParts) {
        const int owner = i / part;
        if (owner != peers.rank) send<4>(turn.mailbox(peers, owner) + mine + (i - owner * part), own[j]);
      } else {
        send<4>(turn.mailbox(peers, 1 - peers.rank) + peers.rank * count + i, own[j]);
      }
    }
  }
  cuda::launch_dependents();
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (column(j) < n) old[j] = __ldcg(reinterpret_cast<const float4*>(x + row + column(j)));
  }
  turn.empty_last(peers);
  const float* const box = turn.mailbox(peers, peers.rank);
  const auto awaited = [&](int j) { return column(j) < n ? empty<4>() : Pack<4>{}; };
  Pack<4> all[kVectors];
  if constexpr (kInParts) {
    const int step = static_cast<int>(gridDim.x) * kNormThreads * 4;
    for (int j = static_cast<int>(blockIdx.x * kNormThreads + threadIdx.x) * 4; j < part && mine + j < count;
         j += step) {
      const Pack<4> addend = kSent ? empty<4>() : sendable(load<4>(partial + mine + j));
      const Pack<4> message = sendable(sum_of_ranks<kRanks>(turn, peers.rank, addend, box + j, part));
      for (int r = 1; r <= kRanks; ++r) {
        send<4>(turn.mailbox(peers, (peers.rank + r) % kRanks) + sums + mine + j, message);
      }
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) all[j] = awaited(j);
    turn.await(all, [&](int j) { return box + sums + row + column(j); });
  } else {
    Pack<4> addends[2 * kVectors];  // from both ranks
#pragma unroll
    for (int j = 0; j < 2 * kVectors; ++j) addends[j] = !kSent && j % 2 == peers.rank ? own[j / 2] : awaited(j / 2);
    turn.await(addends, [&](int j) { return box + j % 2 * count + row + column(j / 2); });
#pragma unroll
    for (int j = 0; j < kVectors; ++j) all[j] = sum(addends[2 * j], addends[2 * j + 1]);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const auto f = [&](int k) { return __uint_as_float(all[j].bits[k]); };
    old[j] = {old[j].x + f(0), old[j].y + f(1), old[j].z + f(2), old[j].w + f(3)};
    if (column(j) < n) *reinterpret_cast<float4*>(x + row + column(j)) = old[j];
  }
  if (n > 0) ops::norm_vectors<kNormThreads, kVectors>(norm, blockIdx.x, old, weight);
  // end() changes the number of the turn, which the product reads: the product must have ended.
  if constexpr (kSent) cuda::wait_for_predecessors();
  turn.end(kInParts ? int64_t{sums} + count : int64_t{kRanks} * count);
}

// For rows of n floats.
template <int kRanks, bool kSent>
auto sum_norm_kernel_for(int64_t n) {
  if (n <= 4 * ops::kChains) return sum_norm_kernel<kRanks, 1, kSent>;
  if (n <= 8 * ops::kChains) return sum_norm_kernel<kRanks, 2, kSent>;
  if (n <= 12 * ops::kChains) return sum_norm_kernel<kRanks, 3, kSent>;
  return sum_norm_kernel<kRanks, 4, kSent>;
}

}  // namespace volley::comm::peer
