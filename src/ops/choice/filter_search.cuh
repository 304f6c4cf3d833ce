// Where a filter's cut lies, found by a team without sorting the row: histograms of the distance to the peak narrow it
// to a few hundred tokens, and those are ranked against each other. Counts and weights are whole numbers, so the order
// of additions does not matter.
#pragma once

#include "ops/choice/row_values.cuh"

namespace volley::ops::choice {

template <bool kInShared>
class FilterSearch {
 public:
  static constexpr int kBins = Team::kThreads;  // a thread a bin
  // Weights are added 12 bits at a time: 2^19 of these fit 32 bits, and 64-bit additions in shared memory are loops.
  static constexpr int kLimbs = 3, kLimbBits = 12;
  static constexpr int kList = Team::kThreads;  // a thread a token

  using Number = Team::Number;
  using Row = RowValues<kInShared>;

  // The team's init() comes after it.
  __device__ explicit FilterSearch(Team& team) : team_(team) {
    if (threadIdx.x < 3) shared().listed[threadIdx.x] = 0;
  }

  // Adds up the worth of the tokens from the highest down, and returns the key of the token at which the sum reaches
  // `target` >= 1; `floor` if all tokens from `floor` up do not reach it. A token is worth 1, or its weight if
  // by_weight; tokens below the window are worth nothing.
  __device__ __noinline__ Key shortest_beginning(Row row, float peak, Key floor, bool by_weight, Number target);

  // A key that at least `k` <= 32 of the team's tokens reach; 0 if no such key is known. mine: the highest key among
  // this thread's tokens.
  __device__ Key bound_of_highest(Key mine, int32_t k);

  // Lists the k <= 32 highest tokens of the window, and maybe some more, none below `floor`; the first block has the
  // list. Returns how many are listed: if more than kList, the list is incomplete and must not be used.
  __device__ __noinline__ uint32_t list_highest(Row row, float peak, Key floor, Key mine, int32_t k);

  // In the first block: ranked[0 .. n) are the n = min(k, listed) highest of the list, in order; k <= 32.
  __device__ __noinline__ int32_t rank_list(uint32_t listed, int32_t k);

  __device__ Key ranked(int32_t i) const { return shared().ranked[i]; }

 private:
  // Tokens whose distance, without its last `shift` bits, is `value`.
  struct Interval {
    uint32_t value = 0;
    int shift = 32;
    Number before = 0;      // worth of the tokens above
    uint32_t tokens = ~0u;  // tokens in it
  };

  // The distance to the peak as a whole number; 2^27 steps to 1. REQUIRES: inside the window.
  __device__ static uint32_t distance(float x) { return __float2uint_rz(x * -134217728.0f); }
  __device__ static bool inside(uint32_t d, Interval in) { return in.shift == 32 || d >> in.shift == in.value; }

  // No token of the window from `floor` up is lower.
  __device__ static float lowest_of(float peak, Key floor) {
    const float window = peak - (kWindow + 0.1f);
    return floor == 0 ? window : fmaxf(window, value_of(floor));
  }

  // Lists the tokens of row.each_from(lowest) that keep(z, id, key) says, in the first block. Returns how many.
  template <typename F>
  __device__ uint32_t list(Row row, float lowest, F&& keep);

  __device__ __noinline__ bool narrow(Row row, float peak, Key floor, bool by_weight, Number target, int shift,
                                      Interval& in);
  __device__ Key end_of_list(uint32_t listed, float peak, bool by_weight, Number target, Number before);
  __device__ __noinline__ Key bisect(Row row, float peak, Key floor, bool by_weight, Number target, Interval in);

  struct Shared {
    uint32_t sums[2][kLimbs][kBins];
    uint32_t counts[2][kBins];
    Number warp_sums[Team::kWarps];
    Number before;
    int32_t bin;
    uint32_t bin_count;
    // The first block's alone.
    uint32_t listed[3];
    Key list[kList];
    Number worth[kList];
    Key ranked[32];
  };
  __device__ static Shared& shared() {
    __shared__ Shared memory;
    return memory;
  }

  Team& team_;
  uint32_t turn_ = 0;       // which buffers of sums and counts come next
  uint32_t list_turn_ = 0;  // which counter of listed tokens comes next
};

template <bool kInShared>
template <typename F>
__device__ uint32_t FilterSearch<kInShared>::list(Row row, float lowest, F&& keep) {
  uint32_t* listed = Team::of(&shared().listed[list_turn_], 0);
  Key* list = Team::of(&shared().list[0], 0);
  list_turn_ = (list_turn_ + 1) % 3;
  // Clears the next call's counter. Its last readers, two calls ago, have passed the sync of the last call.
  if (Team::rank() == 0 && threadIdx.x == 0) shared().listed[list_turn_] = 0;
  row.each_from(lowest, [&](float z, int32_t id) {
    const Key key = key_of(z, id);
    if (!keep(z, key)) return;
    const uint32_t at = atomicAdd(listed, 1u);
    if (at < kList) list[at] = key;
  });
  Team::sync();
  return *listed;
}

template <bool kInShared>
__device__ uint32_t FilterSearch<kInShared>::list_highest(Row row, float peak, Key floor, Key mine, int32_t k) {
  floor = max(floor, bound_of_highest(mine, k));
  Interval in;
  const bool more_than_k = narrow(row, peak, floor, false, static_cast<Number>(k), 23, in);
  const uint32_t last = more_than_k ? in.value : ~0u;
  return list(row, lowest_of(peak, floor), [&](float z, Key key) {
    const float x = z - peak;
    return x >= -kWindow && key >= floor && distance(x) >> 23 <= last;
  });
}

template <bool kInShared>
__device__ int32_t FilterSearch<kInShared>::rank_list(uint32_t listed, int32_t k) {
  if (threadIdx.x < listed) {
    const Key mine = shared().list[threadIdx.x];
    int32_t rank = 0;
    for (uint32_t i = 0; i < listed; ++i) rank += shared().list[i] > mine ? 1 : 0;
    if (rank < k) shared().ranked[rank] = mine;
  }
  __syncthreads();
  return min(k, static_cast<int32_t>(listed));
}

template <bool kInShared>
__device__ Key FilterSearch<kInShared>::bound_of_highest(Key mine, int32_t k) {
  // The k-th highest of a warp's lanes. Keys differ, except that lanes without tokens have 0.
  int32_t rank = 0;
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) rank += __shfl_sync(0xffffffff, mine, lane) > mine ? 1 : 0;
  return team_.highest(rank == k - 1 ? mine : 0);
}

// Replaces `in` by the part of it, in steps of 2^shift, where the beginning ends. False: it does not end in `in`.
template <bool kInShared>
__device__ bool FilterSearch<kInShared>::narrow(Row row, float peak, Key floor, bool by_weight, Number target,
                                                int shift, Interval& in) {
  uint32_t* counts = shared().counts[turn_];
  for (int limb = 0; limb < kLimbs; ++limb) shared().sums[turn_][limb][threadIdx.x] = 0;
  counts[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared().bin = -1;
  __syncthreads();
  row.each_from(lowest_of(peak, floor), [&](float z, int32_t id) {
    const float x = z - peak;
    if (!(x >= -kWindow) || key_of(z, id) < floor) return;
    const uint32_t d = distance(x);
    if (!inside(d, in)) return;
    const uint32_t bin = (d >> shift) & (kBins - 1);
    atomicAdd(&counts[bin], 1u);
    if (!by_weight) return;
    const uint64_t w = weight(x);
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) {
      const uint32_t bits = static_cast<uint32_t>(w >> (limb * kLimbBits)) & ((1u << kLimbBits) - 1);
      if (bits != 0) atomicAdd(&shared().sums[turn_][limb][bin], bits);
    }
  });
  Team::sync();
  Number sum = 0;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < Team::size(); ++rank) {
    count += *Team::of(&counts[threadIdx.x], rank);
    for (int limb = 0; by_weight && limb < kLimbs; ++limb) {
      sum += Number{*Team::of(&shared().sums[turn_][limb][threadIdx.x], rank)} << (limb * kLimbBits);
    }
  }
  if (!by_weight) sum = count;
  turn_ ^= 1;
  Number until = sum;  // the sum of the bins up to this one
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Number other = __shfl_up_sync(0xffffffff, until, step);
    if (lane >= step) until += other;
  }
  if (lane == 31) shared().warp_sums[warp] = until;
  __syncthreads();
  until += in.before;
  for (uint32_t i = 0; i < warp; ++i) until += shared().warp_sums[i];
  if (until >= target && until - sum < target) {
    shared().bin = static_cast<int32_t>(threadIdx.x);
    shared().before = until - sum;
    shared().bin_count = count;
  }
  __syncthreads();
  if (shared().bin < 0) return false;
  in.value = in.shift == 32 ? static_cast<uint32_t>(shared().bin)
                            : in.value << (in.shift - shift) | static_cast<uint32_t>(shared().bin);
  in.shift = shift;
  in.before = shared().before;
  in.tokens = shared().bin_count;
  __syncthreads();
  return true;
}

// The beginning ends inside the list.
template <bool kInShared>
__device__ Key FilterSearch<kInShared>::end_of_list(uint32_t listed, float peak, bool by_weight, Number target,
                                                    Number before) {
  Key end = 0;
  if (Team::rank() == 0) {
    Key mine = 0;
    if (threadIdx.x < listed) {
      mine = shared().list[threadIdx.x];
      shared().worth[threadIdx.x] = by_weight ? weight(value_of(mine) - peak) : 1;
    }
    __syncthreads();
    Number until = before;
    for (uint32_t i = 0; i < listed; ++i) until += shared().list[i] >= mine ? shared().worth[i] : 0;
    if (threadIdx.x < listed && until >= target) end = mine;
  }
  return team_.highest(end);
}

// For more equal distances than the list holds: the highest key that satisfies the target, bit by bit.
template <bool kInShared>
__device__ Key FilterSearch<kInShared>::bisect(Row row, float peak, Key floor, bool by_weight, Number target,
                                               Interval in) {
  static_assert(kMaxVocab == 1 << 19);
  Key end = 0;
  for (int bit = 63; bit >= 0; --bit) {
    if (bit == 31) bit = 18;  // ids have 19 bits
    const Key trial = end | Key{1} << bit;
    Number worth = 0;
    row.each_from(lowest_of(peak, floor), [&](float z, int32_t id) {
      const float x = z - peak;
      const Key key = key_of(z, id);
      if (x >= -kWindow && key >= floor && key >= trial && inside(distance(x), in)) worth += by_weight ? weight(x) : 1;
    });
    if (in.before + team_.sum(worth) >= target) end = trial;
  }
  return end;
}

template <bool kInShared>
__device__ Key FilterSearch<kInShared>::shortest_beginning(Row row, float peak, Key floor, bool by_weight,
                                                           Number target) {
  Interval in;
#pragma unroll 1
  for (const int shift : {23, 14, 5, 0}) {
    if (!narrow(row, peak, floor, by_weight, target, shift, in)) return floor;
    if (in.tokens > kList) continue;
    const uint32_t listed = list(row, lowest_of(peak, floor), [&](float z, Key key) {
      const float x = z - peak;
      return x >= -kWindow && key >= floor && inside(distance(x), in);
    });
    return end_of_list(listed, peak, by_weight, target, in.before);
  }
  return bisect(row, peak, floor, by_weight, target, in);
}

}  // namespace volley::ops::choice
