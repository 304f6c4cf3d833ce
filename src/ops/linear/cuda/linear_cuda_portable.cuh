// y = x W^T for GPUs without wgmma (sm_80 and later), on the same packed weights and with the same bits: mma.sync adds
// along k as wgmma does, 16 at a time.
//
// A block computes 16 weight rows a warp for kRows rows of x. Where k is split, the block has a team of warps for each
// slice, with a ring of stages of its own. Each thread asks for 16 bytes at a time (cp.async); a stage's blocks of
// weights arrive as they lie in memory, and x is swizzled, so that no two rows of a fragment meet in a bank.
//
// Weights defines how weights are stored:
//   kMostStages                   of a ring whose stages are small
//   stage_bytes(rows)             what `rows` weight rows of a block take in a stage
//   fill<Shape>(stage, thread, block, row)  copies a team's weight rows of a block, counted over all panels, from row
//                                 `row` of its panel on
//   multiply<Shape>(stage, sums)  sums[j] += this warp's 16 weight rows times rows 8 j to 8 j + 7 of x, over one stage
#pragma once

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/linear/cuda/linear_cuda_epilogue.cuh"
#include "ops/linear/cuda/linear_cuda_fragments.cuh"

namespace volley::ops {

template <typename Weights>
struct LinearPortableArgs {
  Weights weights;
  const uint8_t* x = nullptr;
  void* y = nullptr;
  int k = 0, k_blocks = 0;
  int rows = 0, outputs = 0, weight_rows = 0;  // sizes of y; rows of the packed weight
  int row_tiles = 0;
  int split = 1;
  EndKind kind = EndKind::kStore;
  const float* bias = nullptr;  // may be null
  bool y_bf16 = false;
};

template <typename Weights_, int kRows_, int kWarps_>
struct LinearPortableShape {
  using Weights = Weights_;
  static constexpr int kRows = kRows_, kWarps = kWarps_;  // rows and warps of a team
  static constexpr int kWeightRows = 16 * kWarps, kTeamThreads = 32 * kWarps;
  static constexpr int kWeightBytes = Weights::stage_bytes(kWeightRows), kStageBytes = kWeightBytes + kRows * 128;
  static constexpr int kStages = kStageBytes <= 6 << 10 ? Weights::kMostStages : kStageBytes <= 12 << 10 ? 4 : 3;
  static constexpr int kRingBytes = kStages * kStageBytes;  // ring of a team; two fit into the 99 KB of sm_89
  static constexpr int kSumStride = kWeightRows + 4;        // floats
  static_assert(2 * kRingBytes <= 99 << 10 && kRows * kSumStride * 4 <= kRingBytes);
};

// Block `block` of k: weights, and rows of x from their places in a matrix.
template <typename Shape>
__device__ void fill_stage(const LinearPortableArgs<typename Shape::Weights>& args, uint32_t stage, int weight_row,
                           int row, int block) {
  const int t = threadIdx.x % Shape::kTeamThreads;
  const int64_t panel = static_cast<int64_t>(weight_row / kPanelRows) * args.k_blocks + block;
  args.weights.template fill<Shape>(stage, t, panel, static_cast<int>(weight_row % kPanelRows));
  fragments::copy_rows<Shape::kRows, Shape::kTeamThreads>(stage + Shape::kWeightBytes, args.x, args.k, args.k,
                                                          block * static_cast<int>(kBlockK), t,
                                                          [&](int r) { return row + r < args.rows ? row + r : -1; });
}

__device__ inline void team_sync(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}

template <typename Shape>
__device__ void multiply_slice(const LinearPortableArgs<typename Shape::Weights>& args, uint32_t ring, int team,
                               int weight_row, int row, float (&sums)[Shape::kRows / 8][4]) {
  using namespace fragments;
  const int begin = team * args.k_blocks / args.split, end = (team + 1) * args.k_blocks / args.split;
  const auto fill = [&](int block) {
    if (block < end)
      fill_stage<Shape>(args, ring + (block - begin) % Shape::kStages * Shape::kStageBytes, weight_row, row, block);
    copies_commit();  // also if empty, so that counting groups counts blocks
  };
  for (int i = 0; i < Shape::kStages - 1; ++i) fill(begin + i);
  for (int block = begin; block < end; ++block) {
    copies_wait<Shape::kStages - 2>();
    team_sync(team, Shape::kTeamThreads);  // this block is there, and all have done with the one before
    fill(block + Shape::kStages - 1);
    args.weights.template multiply<Shape>(ring + (block - begin) % Shape::kStages * Shape::kStageBytes, sums);
  }
  copies_wait<0>();
}

template <typename Shape>
__device__ void finish_portable(const LinearPortableArgs<typename Shape::Weights>& args, const uint8_t* shared,
                                int weight_row, int row) {
  const float* sums = reinterpret_cast<const float*>(shared);
  const auto whole = [&](int at) {
    float4 v = *reinterpret_cast<const float4*>(sums + at);
    if (args.split == 2) v = add(v, *reinterpret_cast<const float4*>(sums + Shape::kRingBytes / 4 + at));
    return v;
  };
  const bool pairs = has_gates(args.kind);  // the first 32 rows of a panel are gates, the others ups
  const int pieces = Shape::kWeightRows / (pairs ? 8 : 4), first = weight_row / (pairs ? 2 : 1);
  for (int i = threadIdx.x; i < Shape::kRows * pieces; i += blockDim.x) {
    const int r = i / pieces, output = i % pieces * 4;
    if (row + r >= args.rows || first + output >= args.outputs) continue;
    const int64_t at = static_cast<int64_t>(row + r) * args.outputs + first + output;
    float4 v = whole(r * Shape::kSumStride + output);
    if (pairs) v = gated(args.kind, v, whole(r * Shape::kSumStride + output + 32), args.y_bf16);
    if (args.bias != nullptr) v = add(v, *reinterpret_cast<const float4*>(args.bias + first + output));
    if (args.kind == EndKind::kAdd) {
      v = add(*reinterpret_cast<const float4*>(static_cast<const float*>(args.y) + at), v);
    }
    store4(args.y, args.y_bf16, at, v);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(2 * Shape::kTeamThreads)
    portable_kernel(const LinearPortableArgs<typename Shape::Weights> args) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 dynamic[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(dynamic);
  const int team = threadIdx.x / Shape::kTeamThreads, t = threadIdx.x % Shape::kTeamThreads;
  const int weight_row = blockIdx.x / args.row_tiles * Shape::kWeightRows;
  const int row = blockIdx.x % args.row_tiles * Shape::kRows;
  float sums[Shape::kRows / 8][4] = {};
  cuda::launch_dependents();
  multiply_slice<Shape>(args, fragments::shared_address(shared) + team * Shape::kRingBytes, team, weight_row, row,
                        sums);
  __syncthreads();  // no thread still reads the rings
  float* left = reinterpret_cast<float*>(shared + team * Shape::kRingBytes);
#pragma unroll
  for (int j = 0; j < Shape::kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[(j * 8 + t % 4 * 2 + i % 2) * Shape::kSumStride + t / 32 * 16 + t % 32 / 4 + i / 2 * 8] = sums[j][i];
    }
  }
  __syncthreads();
  finish_portable<Shape>(args, shared, weight_row, row);
#else
  __trap();
#endif
}

template <int kRows, int kWarps, typename Weights>
void launch_portable(Stream& stream, const LinearPortableArgs<Weights>& args) {
  using Shape = LinearPortableShape<Weights, kRows, kWarps>;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(args.weight_rows / Shape::kWeightRows * args.row_tiles));
  how.block = dim3(static_cast<unsigned>(args.split * Shape::kTeamThreads));
  how.shared_bytes = static_cast<size_t>(args.split) * Shape::kRingBytes;
  cuda::launch(portable_kernel<Shape>, how, stream, args);
}

template <int kRows, typename Weights>
void launch_portable(int warps, Stream& stream, const LinearPortableArgs<Weights>& args) {
  return warps == 2 ? launch_portable<kRows, 2>(stream, args) : launch_portable<kRows, 4>(stream, args);
}

template <typename Weights>
void multiply_portably(Stream& stream, const Weights& weights, const LinearWeight& w, TensorView x, TensorView y,
                       const End& end) {
  const LinearPortablePlan plan = LinearPortablePlan::make(w.n, w.k, w.layout, y.shape[0], w.split_as);
  LinearPortableArgs<Weights> args;
  args.weights = weights;
  args.x = static_cast<const uint8_t*>(x.data);
  args.y = y.data;
  args.k = static_cast<int>(w.k);
  args.k_blocks = static_cast<int>(linear_cuda_k_blocks(w.k));
  args.rows = static_cast<int>(y.shape[0]);
  args.outputs = static_cast<int>(y.shape[1]);
  args.weight_rows = static_cast<int>(linear_cuda_panels(w.n, w.layout) * kPanelRows);
  args.row_tiles = static_cast<int>(plan.row_tiles);
  args.split = plan.split;
  args.kind = end.kind;
  if (end.bias.data != nullptr) args.bias = end.bias.as<float>();
  args.y_bf16 = y.dtype == DType::kBF16;
  switch (plan.tile_rows) {
    case 8:
      return launch_portable<8>(plan.warps, stream, args);
    case 16:
      return launch_portable<16>(plan.warps, stream, args);
    case 32:
      return launch_portable<32>(plan.warps, stream, args);
    case 64:
      return launch_portable<64>(plan.warps, stream, args);
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace volley::ops
