// Long segments on CUDA: the same steps as in gated_delta_phases.h, divided into kernels so that only the steps that
// depend on one another run row after row. Private to this folder.
//
// A prompt's rows depend on one another through the state alone. The first kernel makes convolutions, gates and norms
// of many rows at once. In the second one a block holds some columns of a head's state in registers, and only steps
// from row to row. The third one makes outputs of many rows at once. Rows pass from kernel to kernel through staged
// memory, a slab at a time, which stays in the L2 cache. Every value has the bits that gated_delta_phases.h gives it:
// the same functions make it, or it is added up in the same order.
#pragma once

#include <algorithm>

#include "ops/gated_delta/gated_delta_phases.h"

namespace volley::ops::delta {

inline constexpr int32_t kLeastLongRows = 64;  // shorter segments are done sooner by one kernel
inline constexpr int32_t kSlabRows = 1024, kLeastSlabRows = 256;
inline constexpr int kStepColumns = 2;  // columns of each thread that steps; kLanes threads share them
inline constexpr int kStageRows = 16;   // rows that a block steps over between two barriers

// Staged memory, in which rows wait for their steps, and outputs for the last phase. Each segment has a place.
struct Slabs {
  int32_t places = 0;
  int32_t rows = 0;        // rows of a slab; the last of a segment may have up to tape_rows more
  int32_t place_rows = 0;  // rows of a place
  int32_t padded = 0;      // elements of a head's q, k_dim and zeros
  float* qk = nullptr;     // [places * place_rows][k_heads][2][padded]: q, then k
  float* v = nullptr;      // [places * place_rows][v_heads][v_dim]; the row's output takes its place
  Quad* gates = nullptr;   // [places * place_rows][v_heads]: decay, beta, q k, 0
};

// A segment with at least so many rows is long. So there are at most 7 long ones, however many segments there are.
inline int32_t long_rows(int32_t rows) {
  return std::max(kLeastLongRows, rows / 8);
}

// How a call's long segments are divided; places is 0 if there can be none. Depends only on the bounds.
inline Slabs plan_slabs(const Call& call, int32_t max_segment_rows) {
  Slabs slabs;
  const int32_t least = long_rows(call.rows) + 1;
  if (max_segment_rows < least) return slabs;
  slabs.places = std::min(call.n_segments, call.rows / least);
  if (slabs.places == 0) return slabs;
  slabs.rows = std::min(std::max(kLeastSlabRows, kSlabRows / slabs.places), max_segment_rows + call.tape_rows);
  slabs.place_rows = slabs.rows + call.tape_rows;
  return slabs;
}

inline int64_t slab_floats(const Call& call, const Slabs& slabs) {
  return int64_t{slabs.places} * slabs.place_rows *
         (int64_t{call.k_heads} * 2 * slabs.padded + call.v_width + int64_t{4} * call.v_heads);
}

// memory: [slab_floats()], aligned to 16 bytes.
inline void place_slabs(const Call& call, float* memory, Slabs& slabs) {
  const int64_t rows = int64_t{slabs.places} * slabs.place_rows;
  slabs.gates = reinterpret_cast<Quad*>(memory);
  slabs.qk = memory + rows * 4 * call.v_heads;
  slabs.v = slabs.qk + rows * call.k_heads * 2 * slabs.padded;
}

// How many slabs a segment can have.
inline int32_t most_slabs(const Call& call, const Slabs& slabs, int32_t max_segment_rows) {
  return (max_segment_rows + call.tape_rows + slabs.rows - 1) / slabs.rows;
}

// A slab of a segment: rows [first, first + rows) of its sequence, as in gated_delta_phases.h. The state goes to the
// slot after `stored` of them: at the slab's end, or in the last one where the segment's committed rows end.
struct Slab {
  int32_t first = 0, rows = 0, stored = 0;
};
VOLLEY_HOST_DEVICE inline Slab slab_of(const Work& work, int32_t slab_rows, int32_t index) {
  const int32_t committed = work.replayed + work.committed, last = (committed - 1) / slab_rows;
  Slab slab;
  slab.first = index * slab_rows;
  if (index > last) return slab;
  slab.rows = index < last ? slab_rows : work.replayed + work.rows.rows - slab.first;
  slab.stored = index < last ? slab_rows : committed - slab.first;
  return slab;
}

// --- Rows are staged, by the block of a v head that has prepared them. ---

// at: the first of the rows among the staged ones.
VOLLEY_HOST_DEVICE inline void stage_rows(const Call& call, const Work& work, const Slabs& slabs, int64_t at, int rows,
                                          int thread, int threads, const Shared& s) {
  const int padded = slabs.padded, v_quads = call.v_dim / 4;
  if (work.head % (call.v_heads / call.k_heads) == 0) {
    const int quads = padded / 4;
    for (int i = thread; i < rows * quads; i += threads) {
      const int row = i / quads, c = i % quads * 4;
      float* to = slabs.qk + ((at + row) * call.k_heads + work.k_head) * 2 * padded + c;
      *reinterpret_cast<Quad*>(to) = *reinterpret_cast<const Quad*>(s.q + row * padded + c);
      *reinterpret_cast<Quad*>(to + padded) = *reinterpret_cast<const Quad*>(s.k + row * padded + c);
    }
  }
  for (int i = thread; i < rows * v_quads; i += threads) {
    const int row = i / v_quads, c = i % v_quads * 4;
    *reinterpret_cast<Quad*>(slabs.v + (at + row) * call.v_width + work.head * call.v_dim + c) =
        *reinterpret_cast<const Quad*>(s.v + row * call.v_dim + c);
  }
  for (int row = thread; row < rows; row += threads) {
    slabs.gates[(at + row) * call.v_heads + work.head] = {{s.decay[row], s.beta[row], s.qk[row], 0}};
  }
}

// --- Steps, by a block of `width` columns of a head. ---

VOLLEY_HOST_DEVICE inline int step_width(int v_dim) {
  return v_dim % 32 == 0 ? 32 : 16;
}
VOLLEY_HOST_DEVICE inline int step_threads(int width) {
  return width / kStepColumns * kLanes;
}
// A block's copy of a staged row: q, k, its columns of v, then decay, beta and q k.
VOLLEY_HOST_DEVICE constexpr int staged_floats(int padded, int width) {
  return 2 * padded + width + 4;
}

// The source of four floats of a staged row. piece: below staged_floats() / 4.
VOLLEY_HOST_DEVICE inline const float* staged_piece(const Call& call, const Work& work, const Slabs& slabs, int64_t row,
                                                    int column, int width, int piece) {
  int c = piece * 4;
  if (c < 2 * slabs.padded) return slabs.qk + (row * call.k_heads + work.k_head) * 2 * slabs.padded + c;
  c -= 2 * slabs.padded;
  if (c < width) return slabs.v + row * call.v_width + work.head * call.v_dim + column + c;
  return slabs.gates[row * call.v_heads + work.head].at;
}

template <int kQuads>
struct StepState {
  float at[kQuads * 4][kStepColumns];
};

// The part of the slot's state that thread `thread` of the block has: rows as in gated_delta_phases.h, columns
// `column` + kStepColumns * (thread / kLanes) and the next.
template <int kQuads>
VOLLEY_HOST_DEVICE inline float* step_columns(const Call& call, const Work& work, int column, int thread) {
  return reinterpret_cast<float*>(work.slot + call.state_at) +
         static_cast<int64_t>(work.head) * call.k_dim * call.v_dim + column + thread / kLanes * kStepColumns;
}

template <int kQuads>
VOLLEY_HOST_DEVICE inline void load_columns(const Call& call, const Work& work, bool fresh, int column, int thread,
                                            StepState<kQuads>& state) {
  const float* from = step_columns<kQuads>(call, work, column, thread);
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    const int row = state_row<kQuads>(thread % kLanes, i);
    state.at[i][0] = state.at[i][1] = 0;
    if (!fresh && row < call.k_dim) {
      Pair<float>::load(from + static_cast<int64_t>(row) * call.v_dim, state.at[i][0], state.at[i][1]);
    }
  }
}

template <int kQuads>
VOLLEY_HOST_DEVICE inline void store_columns(const Call& call, const Work& work, int column, int thread,
                                             const StepState<kQuads>& state) {
  float* to = step_columns<kQuads>(call, work, column, thread);
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    const int row = state_row<kQuads>(thread % kLanes, i);
    if (row < call.k_dim) {
      Pair<float>::store(state.at[i][0], state.at[i][1], to + static_cast<int64_t>(row) * call.v_dim);
    }
  }
}

// A thread's values of a staged row. v: of column (lane / 2) % 2 of its two.
template <int kQuads>
struct StepRow {
  Quad q[kQuads], k[kQuads];
  float v, decay, beta, qk;
};

template <int kQuads>
VOLLEY_HOST_DEVICE inline void read_step_row(const float* staged, int width, int thread, StepRow<kQuads>& row) {
  constexpr int kPadded = kQuads * kLanes * 4;
  const int lane = thread % kLanes;
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads; ++i) {
    row.q[i] = *reinterpret_cast<const Quad*>(staged + (i * kLanes + lane) * 4);
    row.k[i] = *reinterpret_cast<const Quad*>(staged + kPadded + (i * kLanes + lane) * 4);
  }
  row.v = staged[2 * kPadded + thread / kLanes * kStepColumns + lane / 2 % 2];
  const Quad gates = *reinterpret_cast<const Quad*>(staged + 2 * kPadded + width);
  row.decay = gates.at[0], row.beta = gates.at[1], row.qk = gates.at[2];
}

// As read_state() for its columns.
template <int kQuads>
VOLLEY_HOST_DEVICE inline void read_columns(const StepState<kQuads>& state, const StepRow<kQuads>& row,
                                            float (&memory)[kStepColumns], float (&read)[kStepColumns]) {
  VOLLEY_UNROLL
  for (int c = 0; c < kStepColumns; ++c) memory[c] = read[c] = 0;
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    VOLLEY_UNROLL
    for (int c = 0; c < kStepColumns; ++c) {
      memory[c] = fmaf(row.k[i / 4].at[i % 4], state.at[i][c], memory[c]);
      read[c] = fmaf(row.q[i / 4].at[i % 4], state.at[i][c], read[c]);
    }
  }
}

// As change_state().
template <int kQuads>
VOLLEY_HOST_DEVICE inline void change_columns(StepState<kQuads>& state, const StepRow<kQuads>& row,
                                              const float (&delta)[kStepColumns]) {
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    VOLLEY_UNROLL
    for (int c = 0; c < kStepColumns; ++c) {
      state.at[i][c] = fmaf(row.k[i / 4].at[i % 4], delta[c], row.decay * state.at[i][c]);
    }
  }
}

}  // namespace volley::ops::delta
