// Blocks of the CUDA kernel on the CPU, one after the other: the very functions that its threads call, between barriers
// for all threads of a block in turn. What this file says itself is what gated_delta_cuda.cu says: where the barriers
// are, and how lanes are added.
#pragma once

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "ops/gated_delta/gated_delta_phases.h"

namespace volley::ops::delta {

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
    if (work.slot == nullptr) return;
    if (work.replayed == kRepeated) {
      for (int i = 0; i < work.rows.rows; ++i) clear(work.rows.row_begin + i);
      return;
    }
    for (int t = 0; t < threads_; ++t) load_state(call_, work, t, states_[t]);
    const int32_t all = work.replayed + work.rows.rows;
    constexpr int kChunk = chunk_rows(kPadded);
    for (int32_t first = 0; first < all; first += kChunk) chunk(first, std::min(kChunk, all - first));
    if ((cursor_of(work)->arrived += tiles_) < call_.v_heads / call_.k_heads * tiles_) return;
    for (int t = 0; t < threads_; ++t) move_kept<T>(call_, work, t, threads_);
    for (int t = 0; t < threads_; ++t) keep_new<T>(call_, work, t, threads_);
  }

 private:
  // Halves are added to halves, as __shfl_xor_sync() does.
  static float warp_sum(std::vector<float> x) {
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
      for (int i = 0; i < lane; ++i) x[i] += x[i + lane];
    }
    return x[0];
  }

  void clear(int32_t row) {
    for (int lane = 0; lane < kWarp; ++lane) clear_output<T>(call_, head_, row, lane);
  }

  void chunk(int32_t first, int rows) {
    for (int tile = 0; tile < tiles_; ++tile) {
      for (int t = 0; t < threads_; ++t) {
        prepare<T, kTaps>(call_, work_[tile], first, rows, t, threads_, kPadded, s_[tile]);
      }
      for (int at = 0; at < rows; ++at) norm_row(at, s_[tile]);
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
      if (row < 0) continue;
      const float* o = s_[at % tiles_].o + at * call_.v_dim;
      std::vector<float> squares(kWarp);
      for (int lane = 0; lane < kWarp; ++lane) squares[lane] = output_squares(o, call_.v_dim, lane);
      for (int lane = 0; lane < kWarp; ++lane) {
        write_output<T>(call_, head_, work.rows.row_begin + row, o, warp_sum(squares), lane);
      }
    }
  }

  void norm_row(int at, const Shared& s) {
    std::vector<RowPart<kQuads>> parts(kWarp);
    std::vector<float> qq(kWarp), kk(kWarp), qk(kWarp);
    for (int lane = 0; lane < kWarp; ++lane) {
      const RowSums sums = read_row(s, at, lane, parts[lane]);
      qq[lane] = sums.qq, kk[lane] = sums.kk, qk[lane] = sums.qk;
    }
    const RowSums sums = {warp_sum(qq), warp_sum(kk), warp_sum(qk)};
    for (int lane = 0; lane < kWarp; ++lane) scale_row(call_, at, sums, lane, parts[lane], s);
  }

  // The eight threads from `thread` on.
  template <bool kOut>
  void step(int thread, int at) {
    const Shared& s = s_[thread / (threads_ / tiles_)];
    const float *k = s.k + at * kPadded, *q = s.q + at * kPadded;
    const int column = thread / kLanes * kColumns;
    float memory[kLanes][kColumns], read[kLanes][kColumns], delta[kColumns];
    for (int p = 0; p < kLanes; ++p) read_state<kQuads, kOut>(states_[thread + p], k, q, p, memory[p], read[p]);
    const auto sum = [](const float(&x)[kLanes][kColumns], int c) {
      return ((x[0][c] + x[4][c]) + (x[2][c] + x[6][c])) + ((x[1][c] + x[5][c]) + (x[3][c] + x[7][c]));
    };
    for (int c = 0; c < kColumns; ++c) {
      const int to = at * call_.v_dim + column + c;
      delta[c] = delta_of(s.v[to], s.beta[at], s.decay[at], sum(memory, c));
      if (kOut) s_[at % tiles_].o[to] = output_of(sum(read, c), s.decay[at], s.qk[at], delta[c]);
    }
    for (int p = 0; p < kLanes; ++p) change_state(states_[thread + p], k, s.decay[at], p, delta);
  }

  const Call& call_;
  const int tiles_;
  const int32_t segment_, head_;
  const int threads_;
  std::vector<std::vector<float>> memory_;  // of each block
  std::vector<Shared> s_;
  std::vector<State<kQuads>> states_;  // of the threads of all tiles, in order
  std::vector<Work> work_;
};

template <typename T, int kQuads>
void simulate(const Call& call, int tiles) {
  for (int32_t segment = 0; segment < std::max(1, call.n_segments); ++segment) {
    for (int32_t head = 0; head < call.v_heads; ++head) {
      call.taps == 4 ? SimulatedCluster<T, kQuads, 4>(call, tiles, segment, head).run()
                     : SimulatedCluster<T, kQuads, 0>(call, tiles, segment, head).run();
    }
  }
}

template <typename T>
void simulate(const Call& call, int tiles) {
  if (call.k_dim <= 32) return simulate<T, 1>(call, tiles);
  if (call.k_dim <= 64) return simulate<T, 2>(call, tiles);
  if (call.k_dim <= 128) return simulate<T, 4>(call, tiles);
  simulate<T, 8>(call, tiles);
}

// As gated_delta() on CUDA, with everything in host memory. Calls differ in the number of tiles.
inline void simulate_gated_delta(Stream& /*stream*/, const Rows& rows, const GatedDelta& args, Arena& /*scratch*/) {
  const Call call = call_of(rows, args);
  const int tiles = tiles_for(call.v_dim, int64_t{call.v_heads} * rows.n_segments, rows.rows > 40, 4);
  args.state.dtype == DType::kF32 ? simulate<float>(call, tiles) : simulate<BFloat16>(call, tiles);
}

}  // namespace volley::ops::delta
