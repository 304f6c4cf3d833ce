// The device memory of a rank in a group over NCCL, and how calls are divided. Plain numbers, which dry runs use too.
#pragma once

#include "comm/comm.h"
#include "comm/peer_layout.h"

namespace volley::comm {

// The buffer of each rank that calls gather in and send from.
inline constexpr int64_t kNcclBufferBytes = int64_t{32} << 20;
inline constexpr int64_t kNcclFloats = kNcclBufferBytes / 4;

// The memory of a GPU that NCCL itself takes, for its kernels and connections (2 ranks: 1.3 GiB; 4: 1.6 to 1.9). No
// Device allocates this memory, so plans reserve it; comm_cuda_test compares the reserve with the real figure.
constexpr int64_t nccl_reserved_bytes(int ranks) {
  return (int64_t{4} + ranks) << 28;
}

// A sum of more than two ranks is made in parts once the addends of all ranks take this many bytes. Each rank sends the
// others their parts of its addends, adds its own part, and gathers the sums. That sends twice the sum's size instead
// of `ranks` times, but in two steps.
inline constexpr int64_t kNcclInPartsBytes = int64_t{1} << 20;

inline SumCut nccl_cut_sum(int64_t count, int ranks, int64_t in_parts_bytes) {
  if (ranks > 2 && count * 4 * ranks >= in_parts_bytes) {
    return {true, kNcclFloats / 2 - int64_t{4} * kMostGroupRanks};  // the buffer holds all parts, rounded up, twice
  }
  return {false, kNcclFloats / ranks / 4 * 4};
}

// A rank's block of the rows gathered at a time: an NcclBlockHead, then the rows, each of `stride` floats.
struct NcclBlockHead {
  int32_t columns = 0, first = 0, unused[2] = {};
};
struct NcclGatherCut {
  int64_t stride = 0;  // floats of a row
  int64_t rows = 0;    // most rows of a block
  int64_t block(int64_t of_rows) const { return int64_t{sizeof(NcclBlockHead)} / 4 + of_rows * stride; }
};
// REQUIRES: a row of every rank fits.
inline NcclGatherCut nccl_cut_gather(int64_t most, int ranks) {
  NcclGatherCut cut;
  cut.stride = std::max<int64_t>(4, round_up(most, 4));
  cut.rows = (kNcclFloats / ranks / 4 * 4 - cut.block(0)) / cut.stride;
  VOLLEY_CHECK_GE(cut.rows, 1);
  return cut;
}

// Launches of a call, as recorded graphs count them. NCCL may add work to its own kernel, which cannot be known in
// advance; it counts as one more.
inline constexpr int64_t kNcclLaunches = 2;
inline int64_t nccl_sum_launches(int64_t count, int ranks, int64_t in_parts_bytes) {
  const SumCut cut = nccl_cut_sum(count, ranks, in_parts_bytes);
  return divide_up(count, cut.chunk) * (cut.in_parts ? 2 * kNcclLaunches + 2 : kNcclLaunches + 1);
}
inline int64_t nccl_gather_launches(int64_t rows, int64_t most, int ranks) {
  return divide_up(rows, nccl_cut_gather(most, ranks).rows) * (kNcclLaunches + 2);
}

}  // namespace volley::comm
