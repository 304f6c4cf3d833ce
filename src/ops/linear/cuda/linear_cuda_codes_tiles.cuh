// The tiles of linear_cuda_tiles.cuh for weights that are codes: a quarter of the bytes or half of them come to shared
// memory, and are widened on their way to the matrix unit.
#pragma once

#include "ops/linear/cuda/linear_cuda_codes_teams.cuh"
#include "ops/linear/cuda/linear_cuda_tiles.cuh"

namespace volley::ops {

struct CodeTileArgs {
  TileArgs tile;
  CodeKind kind;
};

// As TileShape. A stage has room for the codes of any format of 4 bits, or of more (kWide), and for x.
template <int kHalves_, int kRows_, bool kShared_ = false, bool kBiased_ = false, bool kWide_ = false>
struct CodeTileShape : TileShape<kHalves_, kRows_, kShared_, DType::kBF16, false, kBiased_> {
  using Base = TileShape<kHalves_, kRows_, kShared_, DType::kBF16, false, kBiased_>;
  static constexpr bool kWide = kWide_;
  static constexpr int kWeightBytes = (kHalves_ * most_half_bytes(kWide) + 1023) / 1024 * 1024;
  static constexpr int kNSideAt = kWeightBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows_ * 128;
  static constexpr int kSpareBytes = 0;  // a group with rows to spare reads on in its own stage
  static constexpr bool kSends = false;
  // Teams that take chunks of k in turn (linear_cuda_codes_teams.cuh), as many as have the registers.
  static constexpr int kTeams = kRows_ > 64 ? 1 : Base::kGroups == 1 ? 3 : Base::kGroups == 2 ? 2 : 1;
  static constexpr int kChunk = Base::kGroups == 1 ? (kRows_ <= 32 ? 4 : 2) : kRows_ <= 32 ? 2 : 1;
  static constexpr int kRelayAt = Base::kExchangeOutsideRing ? Base::kExchangeBytes : 0;  // behind the ring
  static constexpr int kOtherBytes = 1024 + kRelayAt + (kTeams > 1 ? Base::kConsumers * kRows_ * 2 : 0);
  // Warps that copy weights, and as many that copy x, stage by stage in turn: codes are used up faster than one thread
  // asks for copies. As many as leave the others the registers that they need.
  static constexpr int kCopyWarps = kRows_ <= 128 ? 2 : 1;
  static constexpr int kMultiply = kTeams * Base::kConsumers;  // threads
  static constexpr int kThreads = kMultiply + 2 * kCopyWarps * 32;
  static constexpr int kFitting = ((225 << 10) - kOtherBytes) / kStageBytes / kCopyWarps * kCopyWarps;
  static constexpr int kStages = kFitting < 32 ? kFitting : 32;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kRingBytes + kOtherBytes;
  static_assert(Base::kGroups * kRows_ * Base::kSumStride * 4 <= kRingBytes);
  static_assert(kStages >= 3);
};

// Calls copy(block, stage) for the blocks first, first + kCopyWarps, … below count, each as soon as its stage is free.
template <typename Shape, typename Copy>
__device__ void fill_in_turn(const Ring& ring, int first, int count, const Copy& copy) {
  int stage = first;
  uint32_t parity = 1;  // a wait for a stage that was never read ends at once
#pragma unroll 1
  for (int i = first; i < count; i += Shape::kCopyWarps) {
    hopper::barrier_wait(&ring.empty[stage], parity);
    copy(i, stage);
    stage += Shape::kCopyWarps;
    if (stage >= Shape::kStages) {
      stage -= Shape::kStages;
      parity ^= 1;
    }
  }
}

template <typename Shape>
__device__ void produce_codes(const Ring& ring, const CodeTileArgs& args, Slice slice, int half, int first) {
  using namespace hopper;
  const int halves = max(0, min(Shape::kHalves, args.tile.halves - half)), half_bytes = args.kind.half_bytes();
  const uint64_t policy = args.tile.row_tiles == 1 ? l2_evict_first() : l2_evict_normal();
  fill_in_turn<Shape>(ring, first, slice.count, [&](int block, int stage) {
    barrier_expect(&ring.full[stage], halves * half_bytes);
    uint8_t* to = ring.stages + stage * Shape::kStageBytes;
    for (int h = 0; h < halves;) {
      // The two halves of a panel's block are neighbours in memory.
      const int at = half + h, count = at % 2 == 0 && h + 1 < halves ? 2 : 1;
      const int64_t block_at = static_cast<int64_t>(at / 2) * args.tile.k_blocks + slice.begin + block;
      bulk_copy(to + h * half_bytes, args.tile.weights + (block_at * 2 + at % 2) * half_bytes, count * half_bytes,
                &ring.full[stage], policy);
      h += count;
    }
  });
}

template <typename Shape>
__device__ void produce_rows(const Ring& ring, const CUtensorMap* x_map, Slice slice, int row, int rank, int first) {
  using namespace hopper;
  prefetch_tensor_map(x_map);
  const uint64_t policy = l2_evict_last();
  cuda::wait_for_predecessors();
  fill_in_turn<Shape>(ring, first, slice.count, [&](int block, int stage) {
    const int column = (slice.begin + block) * Shape::kBlockColumns;
    uint8_t* to = ring.stages + stage * Shape::kStageBytes + Shape::kNSideAt;
    barrier_expect(&ring.full[stage], Shape::kRows * 128);
    if constexpr (Shape::kShared) {
      const int part = rank * (Shape::kRows / 2);
      tensor_copy_to_both(to + part * 128, x_map, column, row + part, &ring.full[stage], policy);
    } else {
      tensor_copy(to, x_map, column, row, &ring.full[stage], policy);
    }
  });
}

template <typename Shape>
__device__ void consume_codes_and_finish(const Ring& ring, uint64_t* batons, const CodeTileArgs& code_args, Slice slice,
                                         int rank, int half, int row) {
  const TileArgs& args = code_args.tile;
  const bool exchanges = args.split == 2 && !has_gates(args.kind);
  const bool finishes = Shape::kTeams == 1 || threadIdx.x < Shape::kConsumers;
  // The other block must have begun before anything is sent there.
  if (Shape::kExchangeOutsideRing && exchanges && finishes) hopper::cluster_arrive();
  const int warp = threadIdx.x % Shape::kConsumers / 32;
  const uint32_t own_half = hopper::shared_address(ring.stages) + warp / 2 * code_args.kind.half_bytes();
  const OwnCodes own = {code_args.kind, own_half, warp % 2};
  float registers[Shape::kRows / 2] = {};
  if constexpr (Shape::kTeams > 1) {
    const Relay relay = {batons, reinterpret_cast<float4*>(ring.stages + Shape::kRingBytes + Shape::kRelayAt)};
    consume_codes_in_turn<Shape>(ring, relay, own, slice.count, registers);
    if (!finishes) return;  // as the warps that copy
  } else {
    RingReader reader;
    consume_codes<Shape>(ring, reader, own, slice.count, registers);
  }
  if constexpr (Shape::kExchangeOutsideRing) {
    if (exchanges) return exchange_and_finish<Shape>(ring, args, registers, rank, half, row);
  }
  leave_and_finish<Shape>(ring, args, registers, rank, half, row);
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_code_tiles_kernel(const __grid_constant__ CUtensorMap x_map, const CodeTileArgs code_args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (linear_codes_cuda)
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages], batons[Shape::kMultiply / 32];
  const TileArgs& args = code_args.tile;
  const Ring ring = ring_in(dynamic, full, empty);
  const auto [rank, row, half, slice] = tile_place<Shape>(args);
  if (threadIdx.x == 0) {
    init_stages<Shape>(ring, 2, Shape::kGroups * (Shape::kShared ? 2 : 1));
    if (Shape::kTeams > 1) {
      for (uint64_t& baton : batons) barrier_init(&baton, 1);
    }
    barrier_init_fence();
  }
  if constexpr (Shape::kShared) {
    cluster_sync();  // the other block copies to here
  } else {
    __syncthreads();
  }
  cuda::launch_dependents();
  if (threadIdx.x >= Shape::kMultiply) {
    const int warp = (threadIdx.x - Shape::kMultiply) / 32, first = warp % Shape::kCopyWarps;
    if (threadIdx.x % 32 == 0) {
      if (warp < Shape::kCopyWarps) {
        produce_codes<Shape>(ring, code_args, slice, half, first);
      } else {
        produce_rows<Shape>(ring, &x_map, slice, row, rank, first);
      }
    }
    // They end here: barriers of a cluster count threads that have ended as arrived.
  } else {
    consume_codes_and_finish<Shape>(ring, batons, code_args, slice, rank, half, row);
  }
#else
  __trap();
#endif
}

using CodeTileLaunch = void(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args);

// By the tile's width in halves, each compiled in a file of its own; and those that add a bias.
CodeTileLaunch launch_code_tiles_2, launch_code_tiles_3, launch_code_tiles_4, launch_code_tiles_6;
CodeTileLaunch launch_code_bias_tiles;
// For codes of more than 4 bits.
CodeTileLaunch launch_wide_code_tiles_2, launch_wide_code_tiles_4, launch_wide_code_bias_tiles;

template <typename Shape>
void launch_code_tile(Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args) {
  cuda::launch(linear_code_tiles_kernel<Shape>, tile_launch<Shape>(args.tile), stream, x_map, args);
}

template <int kHalves, bool kBiased, bool kWide, int... kRows>
void launch_code_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args) {
  const bool launched =
      ((tile.rows == kRows &&
        (launch_code_tile<CodeTileShape<kHalves, kRows, false, kBiased, kWide>>(stream, x_map, args), true)) ||
       ...);
  VOLLEY_CHECK_MSG(launched, "linear: a tile that has no kernel");
}

}  // namespace volley::ops
