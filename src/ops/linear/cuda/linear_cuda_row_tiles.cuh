// Many rows on sm_90a, bf16, where k is cut into two slices: tiles with the rows of x as the M side of the matrix unit
// and the weights as its N side. Two neighbouring outputs of a row then lie in one thread, eight in four of them, a
// whole sector of memory, so that results go there from registers.
//
// Either two blocks share a tile as a cluster, a slice each, and each sends the other half of its sums. Or a block
// takes both slices, one after the other with sums for each, and exchanges nothing; two with neighbouring rows are a
// cluster then, and copy half of the weights each, to both. The bits are those of all other tiles
// (linear_cuda_tiles.cuh). LinearCudaPlan.ChoosesTheFastestTiles says where which is faster.
#pragma once

#include "ops/linear/cuda/linear_cuda_epilogue.cuh"
#include "ops/linear/cuda/linear_cuda_ring.cuh"

namespace volley::ops {

// Multiplies kHalves * 32 weight rows with kRows rows of x: a warpgroup for 64 rows, and one that copies. kShared: a
// block takes both slices.
template <int kHalves_, int kRows_, bool kShared_>
struct RowShape {
  static constexpr int kHalves = kHalves_, kRows = kRows_;
  static constexpr bool kShared = kShared_;
  static constexpr Common kCommon = kShared ? Common::kWeights : Common::kNothing;
  static constexpr bool kFp8 = false;
  static constexpr int kBlockColumns = kBlockK;
  static constexpr int kGroups = kRows / 64, kConsumers = kGroups * 128;
  static constexpr int kColumns = kHalves * 32;  // columns of a product
  static constexpr int kProductLimit = 256;
  // The sums want more registers than an even share: the copying warps are a whole group, and give up most of theirs.
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  static_assert(kGroups == 2);
  // A signal that the other block does not wait for could still be under way to it when it ends.
  static constexpr bool kCountsGivenBack = kShared;

  static constexpr int kWeightBytes = kHalves * kHalfBytes;
  static constexpr int kMSideAt = kWeightBytes, kNSideAt = 0;  // in a stage
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  // Half of the other block's sums, behind the ring: [four sums][consumer].
  static constexpr int kExchangeBytes = kShared ? 0 : kConsumers * (kColumns / 4) * 4;
  static constexpr int kStages = ((225 << 10) - 1024 - kExchangeBytes) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kExchangeBytes + 1024;  // the ring starts on 1024
  static_assert(kStageBytes % 1024 == 0 && kStages >= 3);
};

// A thread's results: pairs of neighbouring outputs, in the places in which the matrix unit leaves sums. kShared: of
// two rows; otherwise of the one that the block finishes, the other being the other block's.
template <typename Shape>
struct OwnPairs {
  static constexpr int kAcross = Shape::kColumns / 8, kCount = (Shape::kShared ? 2 : 1) * kAcross;

  const TileArgs& args;
  int row, output;  // place of the first pair
  float2 before[kCount];
  uint64_t turns = 0;  // turns of what is sent

  __device__ OwnPairs(const TileArgs& a, int tile_row, int half, int rank) : args(a) {
    const int t = threadIdx.x;
    row = tile_row + t / 32 * 16 + t % 32 / 4 + (Shape::kShared ? 0 : rank * 8);
    output = half * 32 + t % 4 * 2;
  }
  __device__ int row_of(int pair) const { return row + pair / kAcross * 8; }
  __device__ int output_of(int pair) const { return output + pair % kAcross * 8; }
  __device__ bool exists(int pair) const { return row_of(pair) < args.rows && output_of(pair) < args.outputs; }
  __device__ int64_t place(int pair) const {
    return static_cast<int64_t>(row_of(pair)) * args.outputs + output_of(pair);
  }
  // The tensor that sums are added to, or the mailboxes that they are sent to, if any.
  __device__ void read_before() {
    if (args.sent.turns != nullptr) turns = turns_so_far(args.sent);
    if (args.kind != EndKind::kAdd) return;
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      if (!exists(pair)) continue;
      before[pair] = *reinterpret_cast<const float2*>(static_cast<const float*>(args.y) + place(pair));
    }
  }
  __device__ void send(const float2 (&sums)[kCount]) const {
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      if (exists(pair)) send_sums(args.sent, turns, static_cast<int>(place(pair)), sums[pair]);
    }
  }
  __device__ void store(const float2 (&sums)[kCount]) const {
    if (args.sent.turns != nullptr) return send(sums);
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      if (!exists(pair)) continue;
      float2 v = sums[pair];
      if (args.kind == EndKind::kAdd) v = {before[pair].x + v.x, before[pair].y + v.y};
      store2(args.y, args.y_bf16, place(pair), v);
    }
  }
};

// kShared: both slices, first plus second.
template <typename Shape>
__device__ void consume_both(const Ring& ring, const TileArgs& args, OwnPairs<Shape>& own) {
  using Own = OwnPairs<Shape>;
  RingReader reader;
  reader.wanted = args.k_blocks - Shape::kStages;
  float first[Shape::kColumns / 2] = {}, second[Shape::kColumns / 2] = {};
  consume<Shape>(ring, reader, args.k_blocks / 2, first);
  consume<Shape>(ring, reader, args.k_blocks - args.k_blocks / 2, second);
  if (args.sent.turns != nullptr) let_sums_start();
  hopper::cluster_arrive_relaxed();
  cuda::wait_for_predecessors();
  float2 sums[Own::kCount];
#pragma unroll
  for (int pair = 0; pair < Own::kCount; ++pair) {
    const int i = pair % Own::kAcross * 4 + pair / Own::kAcross * 2;
    sums[pair] = {first[i] + second[i], first[i + 1] + second[i + 1]};
  }
  own.read_before();
  own.store(sums);
  hopper::cluster_wait();  // the other block has received what this one copied
}

// Computes one slice. The cluster's first block finishes the first 8 of each 16 rows, the second block the others.
template <typename Shape>
__device__ void consume_one(const Ring& ring, OwnPairs<Shape>& own, int blocks, int rank, uint64_t* arrived) {
  using namespace hopper;
  using Own = OwnPairs<Shape>;
  RingReader reader;
  float registers[Shape::kColumns / 2] = {};
  consume<Shape>(ring, reader, blocks, registers);
  if (own.args.sent.turns != nullptr) let_sums_start();
  const auto* place = reinterpret_cast<const float4*>(ring.stages + Shape::kStages * Shape::kStageBytes) + threadIdx.x;
  const uint32_t there = shared_address_in(place, 1 - rank), arrived_there = shared_address_in(arrived, 1 - rank);
  float2 sums[Own::kAcross];
#pragma unroll
  for (int j = 0; j < Own::kAcross; j += 2) {
    float2 sent[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* of = registers + (j + i) * 4;
      const float2 upper = {of[0], of[1]}, lower = {of[2], of[3]};
      sums[j + i] = rank == 0 ? upper : lower;
      sent[i] = rank == 0 ? lower : upper;
    }
    send_shared_in(there + j / 2 * Shape::kConsumers * 16, {sent[0].x, sent[0].y, sent[1].x, sent[1].y}, arrived_there);
  }
  cuda::wait_for_predecessors();
  own.read_before();
  barrier_wait(arrived, 0);
  cluster_arrive_relaxed();
#pragma unroll
  for (int j = 0; j < Own::kAcross; j += 2) {
    const float4 other = place[j / 2 * Shape::kConsumers];
    sums[j] = {sums[j].x + other.x, sums[j].y + other.y};
    sums[j + 1] = {sums[j + 1].x + other.z, sums[j + 1].y + other.w};
  }
  own.store(sums);
  cluster_wait();  // the other has what was sent
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_row_tiles_kernel(const __grid_constant__ CUtensorMap x_map, const TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the dispatch sends no other GPU here (linear_cuda_kernel)
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages], arrived;
  const Ring ring = ring_in(dynamic, full, empty);
  // The blocks of a cluster: neighbouring rows, or the slices of a tile.
  const int rank = blockIdx.x % 2, pair = blockIdx.x / 2;
  const int down = Shape::kShared ? (args.row_tiles + 1) / 2 : args.row_tiles;
  const int row = (Shape::kShared ? pair % down * 2 + rank : pair % down) * Shape::kRows;
  const int half = pair / down * Shape::kHalves;
  Slice slice{0, args.k_blocks};
  if constexpr (!Shape::kShared) {
    slice.begin = rank * args.k_blocks / 2;
    slice.count = (rank + 1) * args.k_blocks / 2 - slice.begin;
  }

  if (threadIdx.x == 0) {
    init_stages<Shape>(ring, 2, Shape::kGroups * (Shape::kShared ? 2 : 1));
    barrier_init(&arrived, 1);
    barrier_init_fence();
    if constexpr (!Shape::kShared) barrier_expect(&arrived, Shape::kExchangeBytes);
  }
  cluster_sync();  // the other block writes to here
  if (args.sent.turns == nullptr) cuda::launch_dependents();

  if (threadIdx.x >= Shape::kConsumers) {
    registers_shrink_to<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kConsumers) produce_weights<Shape>(ring, args, slice, half, rank);
    if (threadIdx.x == Shape::kConsumers + 32) produce_x<Shape>(ring, &x_map, slice, row, rank);
    // The producers end here: a cluster's barriers count ended threads as arrived.
  } else {
    registers_grow_to<Shape::kConsumerRegisters>();
    OwnPairs<Shape> own(args, row, half, rank);
    if constexpr (Shape::kShared) {
      consume_both<Shape>(ring, args, own);
    } else {
      consume_one<Shape>(ring, own, slice.count, rank, &arrived);
    }
  }
#else
  __trap();
#endif
}

}  // namespace volley::ops
