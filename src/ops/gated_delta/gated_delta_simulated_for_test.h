// Blocks of the CUDA kernel on the CPU, one after the other: the very functions that its threads call, between barriers
// for all threads of a block in turn. Like gated_delta_cuda.cu, this file only adds the barriers and the sums across
// lanes.
#pragma once

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "ops/gated_delta/gated_delta_long.h"

namespace volley::ops::delta {

// Halves are added to halves, as __shfl_xor_sync() does.
inline float warp_sum(std::vector<float> x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    for (int i = 0; i < lane; ++i) x[i] += x[i + lane];
  }
  return x[0];
}

// The sum over the eight lanes that share columns.
template <int kEach>
float lane_sum(const float (&x)[kLanes][kEach], int c) {
  return ((x[0][c] + x[4][c]) + (x[2][c] + x[6][c])) + ((x[1][c] + x[5][c]) + (x[3][c] + x[7][c]));
}

template <int kQuads>
void norm_row(const Call& call, int at, const Shared& s) {
  std::vector<RowPart<kQuads>> parts(kWarp);
  std::vector<float> qq(kWarp), kk(kWarp), qk(kWarp);
  for (int lane = 0; lane < kWarp; ++lane) {
    const RowSums sums = read_row(s, at, lane, parts[lane]);
    qq[lane] = sums.qq, kk[lane] = sums.kk, qk[lane] = sums.qk;
  }
  const RowSums sums = {warp_sum(qq), warp_sum(kk), warp_sum(qk)};
  for (int lane = 0; lane < kWarp; ++lane) scale_row(call, at, sums, lane, parts[lane], s);
}

template <typename T>
void finish_row(const Call& call, int32_t head, int32_t row, const float* o) {
  std::vector<float> squares(kWarp);
  for (int lane = 0; lane < kWarp; ++lane) squares[lane] = output_squares(o, call.v_dim, lane);
  for (int lane = 0; lane < kWarp; ++lane) write_output<T>(call, head, row, o, warp_sum(squares), lane);
}

// The blocks of one head of a segment: a cluster, or one alone.
template <typename T, int kQuads, int kTaps>
class SimulatedCluster {
  static constexpr int kPadded = kQuads * kLanes * 4;

 public:
  SimulatedCluster(const Call& call, int tiles, int32_t segment, int32_t head)
      : call_(call),
        tiles_(tiles),
        segment_(segment),
        head_(head),
        threads_(state_threads(call.v_dim)),
        memory_(tiles, std::vector<float>(shared_floats(kPadded, call.v_dim), NAN)),
        states_(threads_) {
    for (std::vector<float>& memory : memory_) s_.push_back(shared_parts(memory.data(), kPadded, call.v_dim));
  }

  void run() {
    for (const Shared& s : s_) {
      for (int t = 0; t < threads_; ++t) clear_padding(call_, kPadded, t, threads_, s);
    }
    for (int32_t row = segment_; row < call_.rows; row += std::max(1, call_.n_segments)) {
      if (call_.row_slots[row] < 0 || call_.row_slots[row] >= call_.slots) clear(row);
    }
    for (int tile = 0; tile < tiles_; ++tile) work_.push_back(plan(call_, segment_, head_, tile, tiles_));
    const Work& work = work_[0];
    VOLLEY_CHECK(work.valid);
    if (work.slot == nullptr || is_long(call_, work)) return;
    for (int t = 0; t < threads_; ++t) load_state(call_, work, t, states_[t]);
    const int32_t all = work.replayed + work.rows.rows;
    constexpr int kChunk = chunk_rows(kPadded);
    for (int32_t first = 0; first < all; first += kChunk) chunk(first, std::min(kChunk, all - first));
    if ((cursor_of(work)->arrived += tiles_) < call_.v_heads / call_.k_heads * tiles_) return;
    for (int t = 0; t < threads_; ++t) move_kept<T>(call_, work, t, threads_);
    for (int t = 0; t < threads_; ++t) keep_new<T>(call_, work, t, threads_);
  }

 private:
  void clear(int32_t row) {
    for (int lane = 0; lane < kWarp; ++lane) clear_output<T>(call_, head_, row, lane);
  }

  void chunk(int32_t first, int rows) {
    for (int tile = 0; tile < tiles_; ++tile) {
      for (int t = 0; t < threads_; ++t) {
        prepare<T, kTaps>(call_, work_[tile], first, rows, t, threads_, kPadded, s_[tile]);
      }
      for (int at = 0; at < rows; ++at) norm_row<kQuads>(call_, at, s_[tile]);
    }
    const Work& work = work_[0];
    for (int at = 0; at < rows; ++at) {
      for (int t = 0; t < threads_; t += kLanes) {
        first + at < work.replayed ? step<false>(t, at) : step<true>(t, at);
      }
      if (first + at + 1 != work.replayed + work.committed) continue;
      for (int t = 0; t < threads_; ++t) store_state(call_, work, t, states_[t]);
    }
    for (int at = 0; at < rows; ++at) {
      const int32_t row = first + at - work.replayed;
      if (row >= 0) finish_row<T>(call_, head_, work.rows.row_begin + row, s_[at % tiles_].o + at * call_.v_dim);
    }
  }

  // The eight threads from `thread` on.
  template <bool kOut>
  void step(int thread, int at) {
    const Shared& s = s_[thread / (threads_ / tiles_)];
    const float *k = s.k + at * kPadded, *q = s.q + at * kPadded;
    const int column = thread / kLanes * kColumns;
    float memory[kLanes][kColumns], read[kLanes][kColumns], delta[kColumns];
    for (int p = 0; p < kLanes; ++p) read_state<kQuads, kOut>(states_[thread + p], k, q, p, memory[p], read[p]);
    for (int c = 0; c < kColumns; ++c) {
      const int to = at * call_.v_dim + column + c;
      delta[c] = delta_of(s.v[to], s.beta[at], s.decay[at], lane_sum(memory, c));
      if (kOut) s_[at % tiles_].o[to] = output_of(lane_sum(read, c), s.decay[at], s.qk[at], delta[c]);
    }
    for (int p = 0; p < kLanes; ++p) change_state(states_[thread + p], k, s.decay[at], p, delta);
  }

  const Call& call_;
  const int tiles_;
  const int32_t segment_, head_;
  const int threads_;
  std::vector<std::vector<float>> memory_;  // each block's memory
  std::vector<Shared> s_;
  std::vector<State<kQuads>> states_;  // states of all tiles' threads, in order
  std::vector<Work> work_;
};

// The kernels of gated_delta_long_cuda.cu.
template <typename T, int kQuads, int kTaps>
class SimulatedLong {
  static constexpr int kPadded = kQuads * kLanes * 4, kThreads = 64;

 public:
  SimulatedLong(const Call& call, Slabs slabs, int32_t max_segment_rows) : call_(call), slabs_(slabs) {
    slabs_.padded = kPadded;
    staged_.assign(slab_floats(call, slabs_) / 4, {{NAN, NAN, NAN, NAN}});
    place_slabs(call, staged_.data()->at, slabs_);
    for (int32_t index = 0; index < most_slabs(call, slabs_, max_segment_rows); ++index) {
      each([&](const Work& work, int64_t at) { prepare_rows(work, at, index); });
      each([&](const Work& work, int64_t at) { step_rows(work, at, index); });
      each([&](const Work& work, int64_t at) { finish_rows(work, at, index); });
    }
    for (int32_t segment = 0; segment < call.n_segments; ++segment) {
      for (int32_t head = 0; head < call.v_heads; head += call.v_heads / call.k_heads) move(segment, head);
    }
  }

 private:
  // Calls f(work of a head of a long segment, the first of its staged rows).
  template <typename F>
  void each(const F& f) {
    int64_t place = 0;
    for (int32_t segment = 0; segment < call_.n_segments; ++segment) {
      if (call_.segments[segment].rows <= call_.long_rows) continue;
      VOLLEY_CHECK_LT(place, slabs_.places);
      for (int32_t head = 0; head < call_.v_heads; ++head) {
        const Work work = plan(call_, segment, head, 0, 1);
        if (is_long(call_, work)) f(work, place * slabs_.place_rows);
      }
      ++place;
    }
  }

  void prepare_rows(const Work& work, int64_t at, int32_t index) {
    const Slab slab = slab_of(work, slabs_.rows, index);
    VOLLEY_CHECK_LE(slab.rows, slabs_.place_rows);
    std::vector<float> memory(shared_floats(kPadded, call_.v_dim), NAN);
    const Shared s = shared_parts(memory.data(), kPadded, call_.v_dim);
    for (int t = 0; t < kThreads; ++t) clear_padding(call_, kPadded, t, kThreads, s);
    for (int begin = 0; begin < slab.rows; begin += chunk_rows(kPadded)) {
      const int rows = std::min(chunk_rows(kPadded), slab.rows - begin);
      for (int t = 0; t < kThreads; ++t) {
        prepare<T, kTaps>(call_, work, slab.first + begin, rows, t, kThreads, kPadded, s);
      }
      for (int i = 0; i < rows; ++i) norm_row<kQuads>(call_, i, s);
      for (int t = 0; t < kThreads; ++t) stage_rows(call_, work, slabs_, at + begin, rows, t, kThreads, s);
    }
  }

  void step_rows(const Work& work, int64_t at, int32_t index) {
    const Slab slab = slab_of(work, slabs_.rows, index);
    const int width = step_width(call_.v_dim), threads = step_threads(width);
    std::vector<StepState<kQuads>> states(threads);
    std::vector<Quad> staged(staged_floats(kPadded, width) / 4);
    for (int column = 0; column < call_.v_dim && slab.rows > 0; column += width) {
      for (int t = 0; t < threads; ++t) load_columns(call_, work, work.fresh && index == 0, column, t, states[t]);
      for (int32_t i = 0; i < slab.rows; ++i) {
        for (size_t piece = 0; piece < staged.size(); ++piece) {
          const float* from = staged_piece(call_, work, slabs_, at + i, column, width, static_cast<int>(piece));
          std::copy_n(from, 4, staged[piece].at);
        }
        float* out = slabs_.v + (at + i) * call_.v_width + work.head * call_.v_dim + column;
        for (int t = 0; t < threads; t += kLanes) {
          step(&states[t], staged.data()->at, width, t, out + t / kLanes * kStepColumns);
        }
        if (i + 1 != slab.stored) continue;
        for (int t = 0; t < threads; ++t) store_columns(call_, work, column, t, states[t]);
      }
    }
  }

  // The eight threads from `thread` on.
  static void step(StepState<kQuads>* states, const float* staged, int width, int thread, float* out) {
    float memory[kLanes][kStepColumns], read[kLanes][kStepColumns], delta[kStepColumns];
    StepRow<kQuads> rows[kLanes];
    for (int p = 0; p < kLanes; ++p) {
      read_step_row(staged, width, thread + p, rows[p]);
      read_columns(states[p], rows[p], memory[p], read[p]);
    }
    for (int c = 0; c < kStepColumns; ++c) {
      const StepRow<kQuads>& row = rows[2 * c];
      delta[c] = delta_of(row.v, row.beta, row.decay, lane_sum(memory, c));
      out[c] = output_of(lane_sum(read, c), row.decay, row.qk, delta[c]);
    }
    for (int p = 0; p < kLanes; ++p) change_columns(states[p], rows[p], delta);
  }

  void finish_rows(const Work& work, int64_t at, int32_t index) {
    const Slab slab = slab_of(work, slabs_.rows, index);
    for (int32_t i = 0; i < slab.rows; ++i) {
      const int32_t row = slab.first + i - work.replayed;
      if (row < 0) continue;
      finish_row<T>(call_, work.head, work.rows.row_begin + row,
                    slabs_.v + (at + i) * call_.v_width + work.head * call_.v_dim);
    }
  }

  void move(int32_t segment, int32_t head) {
    const Work work = plan(call_, segment, head, 0, 1);
    if (!is_long(call_, work)) return;
    for (int t = 0; t < kThreads; ++t) move_kept<T>(call_, work, t, kThreads);
    for (int t = kThreads - 1; t >= 0; --t) keep_new<T>(call_, work, t, kThreads);
  }

  const Call& call_;
  Slabs slabs_;
  std::vector<Quad> staged_;
};

// How a call is simulated: blocks of a head, and how long segments are cut.
struct Simulated {
  int tiles = 1;
  Slabs slabs;
  int32_t max_segment_rows = 0;
};

template <typename T, int kQuads, int kTaps>
void simulate(const Call& call, const Simulated& how) {
  for (int32_t segment = 0; segment < std::max(1, call.n_segments); ++segment) {
    for (int32_t head = 0; head < call.v_heads; ++head) {
      SimulatedCluster<T, kQuads, kTaps>(call, how.tiles, segment, head).run();
    }
  }
  if (how.slabs.places > 0) SimulatedLong<T, kQuads, kTaps>(call, how.slabs, how.max_segment_rows);
}

template <typename T, int kQuads>
void simulate(const Call& call, const Simulated& how) {
  call.taps == 4 ? simulate<T, kQuads, 4>(call, how) : simulate<T, kQuads, 0>(call, how);
}

template <typename T>
void simulate(const Call& call, const Simulated& how) {
  if (call.k_dim <= 32) return simulate<T, 1>(call, how);
  if (call.k_dim <= 64) return simulate<T, 2>(call, how);
  if (call.k_dim <= 128) return simulate<T, 4>(call, how);
  simulate<T, 8>(call, how);
}

// As gated_delta() on CUDA, with everything in host memory. Calls differ in the number of tiles, and in which segments
// are long and how they are cut.
inline void simulate_gated_delta(Stream& /*stream*/, const Rows& rows, const GatedDelta& args, Arena& /*scratch*/) {
  Call call = call_of(rows, args);
  Simulated how;
  how.tiles = tiles_for(call.v_dim, int64_t{call.v_heads} * rows.n_segments, rows.rows > 40, 4);
  how.max_segment_rows = rows.max_segment_rows;
  if (rows.rows % 3 > 0) {
    call.long_rows = rows.rows % 3 == 1 ? 20 : 5;
    how.slabs.places = call.n_segments;
    how.slabs.rows = rows.rows % 3 == 1 ? 16 : 40;
    how.slabs.place_rows = how.slabs.rows + call.tape_rows;
  }
  args.state.dtype == DType::kF32 ? simulate<float>(call, how) : simulate<BFloat16>(call, how);
}

}  // namespace volley::ops::delta
