// The kernels of gated_delta_long.h: prepare, step and finish for each slab, and at last the slots move on. What their
// threads do is in the headers; here are the barriers, the sums across lanes, the copies and the launches.
#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "ops/gated_delta/gated_delta_cuda.cuh"
#include "ops/gated_delta/gated_delta_long.h"
#include "ops/linear/cuda/linear_cuda_fragments.cuh"

namespace volley::ops::delta {
namespace {

constexpr int kPrepareThreads = 256, kFinishThreads = 256, kMoveThreads = 256;
constexpr int kFinishRows = 4;
constexpr int kTogether = 8;  // rows that are stepped over together
static_assert(kStageRows % kTogether == 0);
// Stages of rows in shared memory: as many as fit on every GPU.
template <int kQuads>
constexpr int kStages = kQuads > 4 ? 2 : 3;

// The segment that has place `place`: all lanes of a warp ask, and get the same. n_segments: there is none.
__device__ int32_t long_segment(const Call& call, int place) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int32_t first = 0; first < call.n_segments; first += kWarp) {
    const bool is_long = first + lane < call.n_segments && call.segments[first + lane].rows > call.long_rows;
    unsigned mask = __ballot_sync(kAllLanes, is_long);
    const int count = __popc(mask);
    if (place < count) {
      for (; place > 0; --place) mask &= mask - 1;
      return first + __ffs(static_cast<int>(mask)) - 1;
    }
    place -= count;
  }
  return call.n_segments;
}

__device__ Work long_work(const Call& call, int place, int32_t head) {
  Work work = plan(call, long_segment(call, place), head, 0, 1);
  if (!is_long(call, work)) work.slot = nullptr;
  return work;
}

template <typename T, int kQuads, int kTaps>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const Call call, const Slabs slabs, int32_t index) {
  constexpr int kPadded = kQuads * kLanes * 4;
  extern __shared__ float4 dynamic[];
  const Shared s = shared_parts(reinterpret_cast<float*>(dynamic), kPadded, call.v_dim);
  const int thread = static_cast<int>(threadIdx.x);
  clear_padding(call, kPadded, thread, kPrepareThreads, s);
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
  const auto place = static_cast<int>(blockIdx.z);
  const Work work = long_work(call, place, static_cast<int32_t>(blockIdx.x));
  if (work.slot == nullptr) return;
  const Slab slab = slab_of(work, slabs.rows, index);
  const auto begin = static_cast<int32_t>(blockIdx.y) * chunk_rows(kPadded);
  const int rows = min(chunk_rows(kPadded), slab.rows - begin);
  if (rows <= 0) return;
  prepare<T, kTaps>(call, work, slab.first + begin, rows, thread, kPrepareThreads, kPadded, s);
  __syncthreads();
  norm_rows<kQuads>(call, rows, s);
  __syncthreads();
  stage_rows(call, work, slabs, int64_t{place} * slabs.place_rows + begin, rows, thread, kPrepareThreads, s);
}

// The sums of column_sum() in gated_delta_cuda.cu for two columns. For column (lane / 2) % 2, lanes below 4 get S^T k
// and the others S^T q.
__device__ float pair_sum(const float (&memory)[kStepColumns], const float (&read)[kStepColumns], int lane) {
  float four[kStepColumns];
#pragma unroll
  for (int c = 0; c < kStepColumns; ++c) {
    const float kept = lane < 4 ? memory[c] : read[c], sent = lane < 4 ? read[c] : memory[c];
    four[c] = kept + __shfl_xor_sync(kAllLanes, sent, 4);
  }
  const bool second = lane & 2;
  const float two = (second ? four[1] : four[0]) + __shfl_xor_sync(kAllLanes, second ? four[0] : four[1], 2);
  return two + __shfl_xor_sync(kAllLanes, two, 1);
}

// out: the thread's two columns of the row.
template <int kQuads>
__device__ void step_row(StepState<kQuads>& state, const StepRow<kQuads>& row, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float memory[kStepColumns], read[kStepColumns], delta[kStepColumns];
  read_columns(state, row, memory, read);
  const float sum = pair_sum(memory, read, lane);
  const float changed = delta_of(row.v, row.beta, row.decay, sum);  // unused in lanes 4 to 7 of read
#pragma unroll
  for (int c = 0; c < kStepColumns; ++c) delta[c] = __shfl_sync(kAllLanes, changed, 2 * c, kLanes);
  change_columns(state, row, delta);
  const int c = lane / 2 % 2;
  if (lane >= 4 && lane % 2 == 0) out[c] = output_of(sum, row.decay, row.qk, c == 0 ? delta[0] : delta[1]);
}

// Without a branch between the rows, so that the compiler reads a row while it steps over the one before.
template <int kQuads, int kWidth, int kRows>
__device__ void step_rows(StepState<kQuads>& state, const float* staged, float* out, int64_t stride) {
  constexpr int kRow = staged_floats(kQuads * kLanes * 4, kWidth);
  StepRow<kQuads> rows[2];
  read_step_row(staged, kWidth, static_cast<int>(threadIdx.x), rows[0]);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i + 1 < kRows) {
      read_step_row(staged + (i + 1) * kRow, kWidth, static_cast<int>(threadIdx.x), rows[(i + 1) % 2]);
    }
    step_row(state, rows[i % 2], out + i * stride);
  }
}

template <int kQuads, int kWidth>
__global__ void __launch_bounds__(kWidth / kStepColumns * kLanes)
    step_kernel(const Call call, const Slabs slabs, int32_t index) {
  constexpr int kPadded = kQuads * kLanes * 4, kThreads = kWidth / kStepColumns * kLanes;
  constexpr int kRow = staged_floats(kPadded, kWidth), kPieces = kRow / 4;
  extern __shared__ float4 dynamic[];
  auto* const stages = reinterpret_cast<float*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
  const auto tiles = static_cast<unsigned>(call.v_dim / kWidth);
  const int column = static_cast<int>(blockIdx.x % tiles) * kWidth, place = static_cast<int>(blockIdx.y);
  const Work work = long_work(call, place, static_cast<int32_t>(blockIdx.x / tiles));
  if (work.slot == nullptr) return;
  const Slab slab = slab_of(work, slabs.rows, index);
  if (slab.rows == 0) return;
  const int64_t begin = int64_t{place} * slabs.place_rows;
  const int n = (slab.rows + kStageRows - 1) / kStageRows;
  const auto copy_stage = [&](int stage) {
    const int first = stage * kStageRows, rows = min(kStageRows, slab.rows - first);
    for (int piece = thread; piece < kPieces; piece += kThreads) {
      const float* from = staged_piece(call, work, slabs, begin + first, column, kWidth, piece);
      const int64_t stride = staged_piece(call, work, slabs, begin + first + 1, column, kWidth, piece) - from;
      const float* to = stages + stage % kStages<kQuads> * (kStageRows * kRow) + piece * 4;
#pragma unroll 4
      for (int row = 0; row < rows; ++row, from += stride, to += kRow) {
        fragments::copy16(fragments::shared_address(to), from, 16);
      }
    }
  };
  for (int stage = 0; stage < kStages<kQuads> - 1; ++stage) {
    if (stage < n) copy_stage(stage);
    fragments::copies_commit();
  }
  StepState<kQuads> state;
  load_columns(call, work, work.fresh && index == 0, column, thread, state);
  const int64_t stride = call.v_width;
  float* out = slabs.v + begin * call.v_width + work.head * call.v_dim + column + thread / kLanes * kStepColumns;
  for (int stage = 0; stage < n; ++stage) {
    fragments::copies_wait<kStages<kQuads> - 2>();
    __syncthreads();  // and all threads are done with the stage before, whose memory the next copies use
    if (stage + kStages<kQuads> - 1 < n) copy_stage(stage + kStages<kQuads> - 1);
    fragments::copies_commit();
    const float* staged = stages + stage % kStages<kQuads> * (kStageRows * kRow);
    const int32_t first = stage * kStageRows, rows = min(kStageRows, slab.rows - first);
    int32_t at = 0;
    while (at < rows) {
      const int32_t left = min(rows, slab.stored > first + at ? slab.stored - first : rows) - at;
      const float* from = staged + at * kRow;
      if (left >= kTogether) {
        step_rows<kQuads, kWidth, kTogether>(state, from, out + (first + at) * stride, stride);
        at += kTogether;
      } else {
        step_rows<kQuads, kWidth, 1>(state, from, out + (first + at) * stride, stride);
        ++at;
      }
      if (first + at == slab.stored) store_columns(call, work, column, thread, state);
    }
  }
}

// A warp kFinishRows rows of a head.
template <typename T>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const Call call, const Slabs slabs, int32_t index) {
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
  const int item = static_cast<int>(blockIdx.x) * (kFinishThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, head = item % call.v_heads;
  const int begin = item / call.v_heads * kFinishRows;
  const auto place = static_cast<int>(blockIdx.y);
  const Work work = long_work(call, place, head);
  if (work.slot == nullptr) return;
  const Slab slab = slab_of(work, slabs.rows, index);
  for (int at = begin; at < min(begin + kFinishRows, slab.rows); ++at) {
    const int32_t row = slab.first + at - work.replayed;
    if (row < 0) continue;
    const float* o = slabs.v + (int64_t{place} * slabs.place_rows + at) * call.v_width + head * call.v_dim;
    write_output<T>(call, head, work.rows.row_begin + row, o, warp_sum(output_squares(o, call.v_dim, lane)), lane);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMoveThreads) move_kernel(const Call call) {
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
  const auto head = static_cast<int32_t>(blockIdx.x) * (call.v_heads / call.k_heads);
  const Work work = long_work(call, static_cast<int>(blockIdx.y), head);
  __syncthreads();  // the first thread changes the cursor
  if (work.slot == nullptr) return;
  move_kept<T>(call, work, static_cast<int>(threadIdx.x), kMoveThreads);
  __syncthreads();
  keep_new<T>(call, work, static_cast<int>(threadIdx.x), kMoveThreads);
}

// Shared memory for a block, so large that the blocks of the grid spread evenly over the multiprocessors. With less,
// blocks that start while the kernel before still runs pile up where that ended first, and steps take 1.3 times as
// long.
size_t spreading_bytes(size_t needed, int64_t blocks, const GpuInfo& gpu) {
  const int64_t each = (blocks + gpu.multiprocessors - 1) / gpu.multiprocessors;
  return std::max(needed, static_cast<size_t>(gpu.block_shared_bytes / (each + 1) + 16));
}

template <int kQuads, int kWidth>
void launch_steps(Stream& stream, const Call& call, const Slabs& slabs, int32_t index) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(call.v_width / kWidth), static_cast<unsigned>(slabs.places));
  how.block = dim3(static_cast<unsigned>(step_threads(kWidth)));
  how.shared_bytes =
      spreading_bytes(kStages<kQuads> * kStageRows * staged_floats(kQuads * kLanes * 4, kWidth) * sizeof(float),
                      int64_t{how.grid.x} * how.grid.y, stream.gpu());
  how.early = true;
  cuda::launch(step_kernel<kQuads, kWidth>, how, stream, call, slabs, index);
}

template <typename T, int kQuads>
void launch(Stream& stream, const Call& call, int32_t max_segment_rows, Arena& scratch) {
  constexpr int kPadded = kQuads * kLanes * 4;
  Slabs slabs = plan_slabs(call, max_segment_rows);
  slabs.padded = kPadded;
  ArenaScope scope(scratch);
  place_slabs(call, scratch.take(DType::kF32, {slab_floats(call, slabs)}).template as<float>(), slabs);
  const auto places = static_cast<unsigned>(slabs.places);
  cuda::Launch prepare, finish, move;
  prepare.grid =
      dim3(static_cast<unsigned>(call.v_heads),
           static_cast<unsigned>((slabs.place_rows + chunk_rows(kPadded) - 1) / chunk_rows(kPadded)), places);
  prepare.block = dim3(kPrepareThreads);
  prepare.shared_bytes = shared_floats(kPadded, call.v_dim) * sizeof(float);
  constexpr int kAtOnce = kFinishThreads / kWarp;
  const int items = (slabs.place_rows + kFinishRows - 1) / kFinishRows * call.v_heads;
  finish.grid = dim3(static_cast<unsigned>((items + kAtOnce - 1) / kAtOnce), places);
  finish.block = dim3(kFinishThreads);
  move.grid = dim3(static_cast<unsigned>(call.k_heads), places);
  move.block = dim3(kMoveThreads);
  prepare.early = finish.early = move.early = true;
  for (int32_t index = 0; index < most_slabs(call, slabs, max_segment_rows); ++index) {
    cuda::launch(call.taps == 4 ? prepare_kernel<T, kQuads, 4> : prepare_kernel<T, kQuads, 0>, prepare, stream, call,
                 slabs, index);
    step_width(call.v_dim) == 32 ? launch_steps<kQuads, 32>(stream, call, slabs, index)
                                 : launch_steps<kQuads, 16>(stream, call, slabs, index);
    cuda::launch(finish_kernel<T>, finish, stream, call, slabs, index);
  }
  cuda::launch(move_kernel<T>, move, stream, call);
}

template <typename T>
void launch(Stream& stream, const Call& call, int32_t max_segment_rows, Arena& scratch) {
  if (call.k_dim <= 32) return launch<T, 1>(stream, call, max_segment_rows, scratch);
  if (call.k_dim <= 64) return launch<T, 2>(stream, call, max_segment_rows, scratch);
  if (call.k_dim <= 128) return launch<T, 4>(stream, call, max_segment_rows, scratch);
  launch<T, 8>(stream, call, max_segment_rows, scratch);
}

}  // namespace

void gated_delta_long_cuda(Stream& stream, const Call& call, DType dtype, int32_t max_segment_rows, Arena& scratch) {
  dtype == DType::kF32 ? launch<float>(stream, call, max_segment_rows, scratch)
                       : launch<BFloat16>(stream, call, max_segment_rows, scratch);
}

}  // namespace volley::ops::delta
