// A block a (v head, segment): one launch a layer and step, and one read and one write of the state in it. What its
// threads do is in gated_delta_phases.h; here are the barriers, the sums across lanes and the launch.
//
// On sm_90 a cluster of blocks may take one v head, and long segments go another way (gated_delta_long_cuda.cu); the
// bits are the same.
//
// All counts and positions are read on the device, so a recorded launch serves any segments. The v heads of a k head
// share the slot's kept rows of q and k: the last of their blocks to read them moves the slot on.
#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/hopper.cuh"
#include "ops/gated_delta/gated_delta_cuda.cuh"
#include "ops/gated_delta/gated_delta_kernels.h"
#include "ops/gated_delta/gated_delta_long.h"

namespace volley::ops {
namespace {

using namespace delta;  // NOLINT: what this file is written in

constexpr int kMostThreads = 512;  // for 256 columns; with 128 columns two blocks run on a multiprocessor

// Sums over the eight lanes that share four columns. Lane c < 4 gets the sum of memory[c]; lane 4 + c gets that of
// read[c] if kOut, else of memory[c] again. The order is that of pair_sum() in gated_delta_long_cuda.cu: lanes 4 apart
// are added first, then 2 apart, then neighbours.
template <bool kOut>
__device__ float column_sum(const float (&memory)[kColumns], const float (&read)[kColumns], int lane) {
  float four[kColumns], two[2];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float kept = !kOut || lane < 4 ? memory[c] : read[c];
    const float sent = !kOut || lane >= 4 ? memory[c] : read[c];
    four[c] = kept + __shfl_xor_sync(kAllLanes, sent, 4);
  }
  const bool upper = lane & 2, odd = lane & 1;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float kept = upper ? four[c + 2] : four[c], sent = upper ? four[c] : four[c + 2];
    two[c] = kept + __shfl_xor_sync(kAllLanes, sent, 2);
  }
  return (odd ? two[1] : two[0]) + __shfl_xor_sync(kAllLanes, odd ? two[0] : two[1], 1);
}

// All threads of the head's blocks.
template <int kTiles>
__device__ void sync_tiles() {
  if constexpr (kTiles == 1) {
    __syncthreads();
  } else {
#if __CUDA_ARCH__ >= 900
    hopper::cluster_sync();
#endif
  }
}

// *to = x in block `rank` of the head's.
template <int kTiles>
__device__ void store_in(float* to, int rank, float x) {
  if constexpr (kTiles == 1) {
    *to = x;
  } else {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = hopper::shared_address_in(to, static_cast<uint32_t>(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
#endif
  }
}

// Takes the state through row `at` of the chunk. kOut: the row's output is wanted. thread: its number among those that
// hold the head's state.
template <int kQuads, int kTiles, bool kOut>
__device__ void step_row(State<kQuads>& state, const Shared& s, int thread, int at, int v_dim) {
  constexpr int kPadded = kQuads * kLanes * 4;
  const int lane = thread % kLanes, column = thread / kLanes * kColumns + lane % kColumns;
  const float *k = s.k + at * kPadded, *q = s.q + at * kPadded;
  const float decay = s.decay[at], v = s.v[at * v_dim + column], beta = s.beta[at];
  float memory[kColumns], read[kColumns], delta[kColumns];
  read_state<kQuads, kOut>(state, k, q, lane, memory, read);
  const float sum = column_sum<kOut>(memory, read, lane);
  const float changed = delta_of(v, beta, decay, sum);  // unused in lanes 4 to 7 of read
#pragma unroll
  for (int c = 0; c < kColumns; ++c) delta[c] = __shfl_sync(kAllLanes, changed, c, kLanes);
  change_state(state, k, decay, lane, delta);
  if (!kOut || lane < 4) return;
  const float own = lane & 2 ? (lane & 1 ? delta[3] : delta[2]) : (lane & 1 ? delta[1] : delta[0]);
  store_in<kTiles>(s.o + at * v_dim + column, at % kTiles, output_of(sum, decay, s.qk[at], own));
}

// The last of the k head's blocks moves the slot on.
template <typename T>
__device__ void move_on(const Call& call, const Work& work) {
  __shared__ bool last;
  __syncthreads();  // all of this block have read what the slot keeps
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&cursor_of(work)->arrived, 1) == call.v_heads / call.k_heads * work.tiles - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  move_kept<T>(call, work, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
  keep_new<T>(call, work, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

// Sets rows that belong to no slot to 0; the blocks of a head divide these rows. Each lane checks a row.
template <typename T>
__device__ void clear_rows_of_nobody(const Call& call, int32_t segment, int32_t head) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int32_t begin = (segment * warps + static_cast<int32_t>(threadIdx.x) / kWarp) * kWarp;
  for (int32_t first = begin; first < call.rows; first += static_cast<int32_t>(gridDim.y) * warps * kWarp) {
    const int32_t slot = first + lane < call.rows ? call.row_slots[first + lane] : 0;
    unsigned nobody = __ballot_sync(kAllLanes, slot < 0 || slot >= call.slots);
    for (; nobody != 0; nobody &= nobody - 1) {
      clear_output<T>(call, head, first + __ffs(static_cast<int>(nobody)) - 1, lane);
    }
  }
}

// kQuads: k_dim / 32, rounded up. kTaps: 0, where it is not 4. kTiles: blocks of a head, which are a cluster.
template <typename T, int kQuads, int kTaps, int kTiles>
__global__ void __launch_bounds__(kMostThreads) gated_delta_kernel(const Call call) {
  constexpr int kPadded = kQuads * kLanes * 4;
  extern __shared__ float4 dynamic[];
  const Shared s = shared_parts(reinterpret_cast<float*>(dynamic), kPadded, call.v_dim);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarp, warp = thread / kWarp, warps = threads / kWarp;
  const auto head = static_cast<int32_t>(blockIdx.x) / kTiles, tile = static_cast<int32_t>(blockIdx.x) % kTiles;
  const auto segment = static_cast<int32_t>(blockIdx.y);
  clear_padding(call, kPadded, thread, threads, s);
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
  if (tile == 0) clear_rows_of_nobody<T>(call, segment, head);
  const Work work = plan(call, segment, head, tile, kTiles);
  if (!work.valid) __trap();  // our bug: a wrong position would give a wrong text that no user could tell
  if (work.slot == nullptr || is_long(call, work)) return;
  // In a cluster only some warps of a block hold the state of their tile; all warps prepare and finish rows.
  const int holders = state_threads(call.v_dim) / kTiles, holder = tile * holders + thread;
  const bool holds = kTiles == 1 || thread < holders;
  State<kQuads> state;
  if (holds) load_state(call, work, holder, state);
  const int32_t committed = work.replayed + work.committed, all = work.replayed + work.rows.rows;
  for (int32_t first = 0; first < all; first += chunk_rows(kPadded)) {
    const int rows = min(chunk_rows(kPadded), all - first);
    prepare<T, kTaps>(call, work, first, rows, thread, threads, kPadded, s);
    __syncthreads();
    norm_rows<kQuads>(call, rows, s);
    sync_tiles<kTiles>();  // and all threads have finished the rows of the chunk before
    for (int at = 0; holds && at < rows; ++at) {
      if (first + at < work.replayed) {
        step_row<kQuads, kTiles, false>(state, s, holder, at, call.v_dim);
      } else {
        step_row<kQuads, kTiles, true>(state, s, holder, at, call.v_dim);
      }
      if (first + at + 1 == committed) store_state(call, work, holder, state);
    }
    sync_tiles<kTiles>();
    for (int at = warp * kTiles + tile; at < rows; at += warps * kTiles) {
      const int32_t row = first + at - work.replayed;
      if (row < 0) continue;
      const float* o = s.o + at * call.v_dim;
      write_output<T>(call, head, work.rows.row_begin + row, o, warp_sum(output_squares(o, call.v_dim, lane)), lane);
    }
  }
  move_on<T>(call, work);
}

template <typename T, int kQuads, int kTaps, int kTiles>
void launch(Stream& stream, const Call& call) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(call.v_heads * kTiles), static_cast<unsigned>(std::max(1, call.n_segments)));
  how.block = dim3(static_cast<unsigned>(state_threads(call.v_dim)));
  how.shared_bytes = shared_floats(kQuads * kLanes * 4, call.v_dim) * sizeof(float);
  how.cluster = kTiles;
  how.early = true;
  cuda::launch(gated_delta_kernel<T, kQuads, kTaps, kTiles>, how, stream, call);
}

// Tiles are for the size of head that published models have.
template <typename T, int kQuads>
void launch(Stream& stream, const Call& call, int tiles) {
  if (call.taps != 4) return launch<T, kQuads, 0, 1>(stream, call);
  if constexpr (kQuads == 4) {
    if (tiles == 4) return launch<T, kQuads, 4, 4>(stream, call);
    if (tiles == 2) return launch<T, kQuads, 4, 2>(stream, call);
  }
  launch<T, kQuads, 4, 1>(stream, call);
}

template <typename T>
void launch(Stream& stream, const Call& call, int tiles) {
  if (call.k_dim <= 32) return launch<T, 1>(stream, call, tiles);
  if (call.k_dim <= 64) return launch<T, 2>(stream, call, tiles);
  if (call.k_dim <= 128) return launch<T, 4>(stream, call, tiles);
  launch<T, 8>(stream, call, tiles);
}

void gated_delta_cuda(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch) {
  if (rows.rows == 0) return;
  Call call = call_of(rows, args);
  const GpuInfo& gpu = stream.gpu();
  const int64_t heads = int64_t{call.v_heads} * call.n_segments;
  const bool longer = plan_slabs(call, rows.max_segment_rows).places > 0;
  if (longer) call.long_rows = long_rows(call.rows);
  const bool in_tiles = rows.max_segment_rows > kLeastLongRows;
  const int tiles = gpu.at_least(90) ? tiles_for(call.v_dim, heads, in_tiles, gpu.multiprocessors) : 1;
  args.state.dtype == DType::kF32 ? launch<float>(stream, call, tiles) : launch<BFloat16>(stream, call, tiles);
  if (longer) gated_delta_long_cuda(stream, call, args.state.dtype, rows.max_segment_rows, scratch);
}

}  // namespace

const GatedDeltaKernels GatedDeltaKernels::kCuda = {gated_delta_cuda};

}  // namespace volley::ops
