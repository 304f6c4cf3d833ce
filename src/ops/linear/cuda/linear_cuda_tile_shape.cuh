// The shape of a tile whose M side are weights, and the way of its sums from the matrix unit's registers to rows in
// shared memory.
#pragma once

#include "ops/linear/cuda/linear_cuda_ring.cuh"

namespace volley::ops {

// kHalves * 32 weight rows for kRows rows of x, by kGroups warpgroups and two producer warps. kShared: two blocks with
// neighbouring weights and the same rows are a cluster; each copies half of the rows, to both. kStorage: of weights and
// x, kBF16 or kF8E4M3; a stage holds 128 bytes of every row of both. kSummarises: rows that TileArgs::whole does not
// name end as summaries; one slice of k, kStore. kBiased: sums end with the bias added; in kernels of their own, so
// that other kernels do not fetch that code. kInBlocks: kFp8Blocks (linear_cuda_blocks.cuh). kBlocks: 1, or 2 that
// share a multiprocessor.
template <int kHalves_, int kRows_, bool kShared_ = false, DType kStorage_ = DType::kBF16, bool kSummarises_ = false,
          bool kBiased_ = false, bool kInBlocks_ = false, int kBlocks_ = 1>
struct TileShape {
  static constexpr int kHalves = kHalves_, kRows = kRows_;
  static constexpr bool kShared = kShared_, kSummarises = kSummarises_, kBiased = kBiased_;
  static constexpr Common kCommon = kShared ? Common::kX : Common::kNothing;
  static constexpr bool kFp8 = kStorage_ == DType::kF8E4M3;
  static constexpr bool kInBlocks = kInBlocks_;
  static constexpr bool kScalesSums = kFp8 && !kInBlocks;  // when they are whole
  static_assert(!kInBlocks || (kFp8 && !kShared && !kSummarises));
  static constexpr int kBlockColumns = static_cast<int>(linear_cuda_block_k(kStorage_));
  static constexpr int kGroups = (kHalves + 1) / 2;  // a warpgroup for 64 weight rows; the last may have 32 to spare
  static constexpr int kConsumers = kGroups * 128;
  // Three groups with many sums need more registers than an even share: the producers are a whole group then, and give
  // up most of theirs.
  static constexpr bool kUnevenRegisters = kGroups == 3 && kRows >= (kInBlocks ? 128 : 192);
  static constexpr int kThreads = kConsumers + (kUnevenRegisters ? 128 : 64);  // and a warp each for weights and x

  static constexpr int kColumns = kRows;  // columns of a product: the rows of x are the N side
  static constexpr int kProductLimit = kUnevenRegisters ? 128 : 256;
  static constexpr bool kCountsGivenBack = false;

  static constexpr int kWeightBytes = kHalves * kHalfBytes;
  static constexpr int kMSideAt = 0, kNSideAt = kWeightBytes;  // in a stage
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  // The ring starts on 1024; a group with rows to spare reads past its weights, at the end past the ring.
  static constexpr int kSpareBytes = kHalves % 2 == 0 ? 0 : kHalfBytes;
  // Two slices: small tiles have a place for half of the other block's sums, which are sent there; large ones leave all
  // sums in the place of their own ring, and the other block fetches half of them.
  static constexpr int kExchangeBytes = kConsumers * kRows;
  static constexpr bool kExchangeOutsideRing = !kShared && kHalves <= 3 && kRows <= 64;
  // Whether sums can be sent. Exchanged sums leave in pieces of 32 bytes, and fetched ones in pieces of 256, which are
  // faster on a link; tiles of many rows fetch.
  static constexpr bool kSends = kRows <= kMostSentRows && !kSummarises && !kBiased;
  static constexpr bool kExchangesSent = kRows <= 32;
  static constexpr int kOtherBytes = 1024 + kSpareBytes + (kExchangeOutsideRing ? kExchangeBytes : 0);
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kMemory = (kBlocks == 2 ? 112 : 225) << 10;
  // In blocks: the scales of a stage's rows, behind all else.
  static constexpr int kStageScaleBytes = kInBlocks ? kRows * 4 : 0;
  static constexpr int kStages = (kMemory - kOtherBytes) / (kStageBytes + kStageScaleBytes);
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kScalesAt = kRingBytes + kOtherBytes - 1024;
  static constexpr int kSharedBytes = kRingBytes + kOtherBytes + kStages * kStageScaleBytes;

  // Sums wait in the ring's place as [group][row][output of 64]; 4 floats of padding spread a column's writes over the
  // banks.
  static constexpr int kSumStride = 64 + 4;
  static_assert(kGroups * kRows * kSumStride * 4 <= kRingBytes);
  static_assert(kStageBytes % 1024 == 0 && kStages >= 3);
};

template <typename Shape>
__device__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kConsumers) : "memory");
}
// The calling warpgroup. Named one by one: with a computed name a kernel would take all barriers there are.
template <typename Shape>
__device__ void group_sync() {
  const int group = threadIdx.x / 128;
  if (group == 0) asm volatile("bar.sync 2, 128;" ::: "memory");
  if (Shape::kGroups > 1 && group == 1) asm volatile("bar.sync 3, 128;" ::: "memory");
  if (Shape::kGroups > 2 && group == 2) asm volatile("bar.sync 4, 128;" ::: "memory");
}

// A warpgroup's sums to its place in shared memory.
template <typename Shape>
__device__ void leave_sums(float* group_sums, const float (&sums)[Shape::kRows / 2]) {
  const int t = threadIdx.x % 128, output = t / 32 * 16 + t % 32 / 4;
  if (threadIdx.x / 128 * 64 + output >= Shape::kHalves * 32) return;  // the last group's rows to spare
#pragma unroll
  for (int i = 0; i < Shape::kRows / 2; ++i) {
    const int row = i / 4 * 8 + t % 4 * 2 + i % 2;
    group_sums[row * Shape::kSumStride + output + i % 4 / 2 * 8] = sums[i];
  }
}

}  // namespace volley::ops
