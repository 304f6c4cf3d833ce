// The work of a CUDA kernel's thread between two barriers or shuffles, as plain functions of its place in the block:
// the kernel (gated_delta_cuda.cu) calls them, and so does a test on the CPU, over a simulated block. Private to this
// folder.
//
// A block takes one v head of one segment. Its state [k_dim][v_dim] lies in registers: thread t holds columns 4 (t / 8)
// to 4 (t / 8) + 3 of every eighth group of four rows, from group t % 8 on. Rows of the sequence come some at a time:
// their convolutions by all threads, a channel pair and kGroup rows at once; their norms by a warp a row; then one row
// after the other through the state, which needs no barrier, because the 8 threads that share a column are in one warp;
// then their outputs by a warp a row.
//
// Where there are few heads to compute, a cluster of blocks takes one v head: each holds a tile of the state's columns
// and prepares all of q and k, but its part of v alone; outputs go to the block that finishes the row, row % tiles.
//
// The order of a sum depends only on k_dim, v_dim and taps, never on the number of rows or their source.
#pragma once

#include <cmath>
#include <cstring>

#include "base/host_device.h"
#include "ops/gated_delta/gated_delta_layout.h"

namespace volley::ops::delta {

inline constexpr int kLanes = 8;    // threads that share four columns of the state
inline constexpr int kColumns = 4;  // columns of a thread
inline constexpr int kGroup = 4;    // rows that a thread convolves at once
inline constexpr int kWarp = 32;

// A call, as its blocks see it.
struct Call {
  int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, taps = 0;
  int32_t k_width = 0, v_width = 0, channels = 0, row_width = 0;  // widths of a row: channels and z
  const void* projected = nullptr;
  const float *gates = nullptr, *conv = nullptr, *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;
  float eps = 0;
  void* out = nullptr;
  std::byte* states = nullptr;
  int64_t slot_bytes = 0, state_at = 0, rows_at = 0, gates_at = 0;  // DeltaLayout
  int32_t slots = 0, tape_rows = 0;
  const RowSegment* segments = nullptr;
  const int32_t *cache_positions = nullptr, *row_slots = nullptr;
  int32_t n_segments = 0, rows = 0;
  int32_t long_rows = INT32_MAX;  // segments of more rows are for the kernels of gated_delta_long.h
};

// REQUIRES: checked arguments (gated_delta.cc).
inline Call call_of(const Rows& rows, const GatedDelta& args) {
  const DeltaShape& shape = args.shape;
  const DeltaLayout layout(shape, args.state.tape_rows, args.state.dtype);
  Call call{shape.k_heads, shape.v_heads, shape.k_dim, shape.v_dim, shape.taps};
  call.k_width = static_cast<int32_t>(shape.k_width());
  call.v_width = static_cast<int32_t>(shape.v_width());
  call.channels = static_cast<int32_t>(shape.channels());
  call.row_width = call.channels + call.v_width;
  call.projected = args.projected.data;
  call.gates = args.gates.as<float>();
  call.conv = args.conv.as<float>();
  call.a_log = args.a_log.as<float>();
  call.dt_bias = args.dt_bias.as<float>();
  call.norm = args.norm.as<float>();
  call.eps = args.eps;
  call.out = args.out.data;
  call.states = args.state.base;
  call.slot_bytes = layout.bytes;
  call.state_at = layout.state;
  call.rows_at = layout.rows;
  call.gates_at = layout.gates;
  call.slots = args.state.slots;
  call.tape_rows = args.state.tape_rows;
  call.segments = rows.segments;
  call.cache_positions = rows.cache_positions.as<int32_t>();
  call.row_slots = rows.slots.as<int32_t>();
  call.n_segments = rows.n_segments;
  call.rows = rows.rows;
  return call;
}

// A block's work.
struct Work {
  RowSegment rows;
  int32_t head = 0, k_head = 0;
  int32_t tile = 0, tiles = 1;  // tile of the state's columns
  std::byte* slot = nullptr;    // null: the segment has no rows, or is of no slot
  bool fresh = false;           // the segment begins its sequence
  int32_t replayed = 0;         // rows of the tape that go into the state first
  int32_t committed = 0;        // rows of the segment that go into the state
  bool valid = true;            // positions and rows are where they may be
};

// Rows of the sequence that are prepared together: 32, unless that takes more shared memory than every GPU has.
VOLLEY_HOST_DEVICE constexpr int chunk_rows(int padded) {
  return padded > 128 ? 16 : 32;
}

// The block's part of shared memory, in floats.
struct Shared {
  float *q, *k;  // [chunk_rows][padded]: k_dim values and zeros
  float* v;      // [chunk_rows][v_dim], and so is o
  float* o;
  float *decay, *beta, *qk;  // [chunk_rows]
};

VOLLEY_HOST_DEVICE constexpr int shared_floats(int padded, int v_dim) {
  return chunk_rows(padded) * (2 * padded + 2 * v_dim + 3);
}

VOLLEY_HOST_DEVICE inline Shared shared_parts(float* memory, int padded, int v_dim) {
  const int rows = chunk_rows(padded);
  Shared s;
  s.q = memory;
  s.k = s.q + rows * padded;
  s.v = s.k + rows * padded;
  s.o = s.v + rows * v_dim;
  s.decay = s.o + rows * v_dim;
  s.beta = s.decay + rows;
  s.qk = s.beta + rows;
  return s;
}

// Threads that hold the state of a head; each of its tiles is some of them in their order.
VOLLEY_HOST_DEVICE inline int state_threads(int v_dim) {
  return v_dim / kColumns * kLanes;
}

// In how many tiles a head's columns are cut, so that `heads` heads keep the multiprocessors busy: 1, 2 or 4, of whole
// warps. Rows of a long segment are processed in sequence, and each takes less time if a block has fewer columns.
inline int tiles_for(int v_dim, int64_t heads, bool long_segments, int multiprocessors) {
  int tiles = 1;
  while (tiles < 4 && v_dim % (2 * tiles * kColumns * (kWarp / kLanes)) == 0 &&
         (long_segments || heads * tiles < multiprocessors)) {
    tiles *= 2;
  }
  return tiles;
}

VOLLEY_HOST_DEVICE inline DeltaCursor* cursor_of(const Work& work) {
  return reinterpret_cast<DeltaCursor*>(work.slot) + work.k_head;
}

VOLLEY_HOST_DEVICE inline Work plan(const Call& call, int32_t segment, int32_t head, int32_t tile, int32_t tiles) {
  Work work;
  work.head = head;
  work.tile = tile;
  work.tiles = tiles;
  work.k_head = head / (call.v_heads / call.k_heads);
  if (segment >= call.n_segments) return work;
  work.rows = call.segments[segment];
  if (work.rows.rows == 0 || work.rows.slot >= call.slots) return work;
  work.valid = work.rows.slot >= 0 && work.rows.row_begin >= 0 && work.rows.rows > 0 &&
               work.rows.row_begin + work.rows.rows <= call.rows;
  if (!work.valid) return work;
  work.slot = call.states + work.rows.slot * call.slot_bytes;
  const DeltaCursor cursor = *cursor_of(work);
  const int32_t position = call.cache_positions[work.rows.row_begin];
  work.fresh = position == 0;
  work.replayed = work.fresh ? 0 : position - cursor.position;
  work.valid = work.fresh || (work.replayed >= 0 && work.replayed <= cursor.tape);
  work.committed = work.rows.rows - call.tape_rows;
  if (work.committed < 1) work.committed = 1;
  return work;
}

// Whether the segment is for the kernels of gated_delta_long.h. REQUIRES: work.valid.
VOLLEY_HOST_DEVICE inline bool is_long(const Call& call, const Work& work) {
  return work.slot != nullptr && work.rows.rows > call.long_rows;
}

VOLLEY_HOST_DEVICE inline float value_of(float x) {
  return x;
}
VOLLEY_HOST_DEVICE inline float value_of(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
VOLLEY_HOST_DEVICE inline void set_value(float x, float& to) {
  to = x;
}
// As to_bfloat16().
VOLLEY_HOST_DEVICE inline void set_value(float x, BFloat16& to) {
  uint32_t u;
  memcpy(&u, &x, sizeof(u));
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Neighbouring elements, in one access.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T a, b;

  VOLLEY_HOST_DEVICE static void load(const T* from, float& a, float& b) {
    const Pair pair = *reinterpret_cast<const Pair*>(from);
    a = value_of(pair.a), b = value_of(pair.b);
  }
  VOLLEY_HOST_DEVICE static void store(float a, float b, T* to) {
    Pair pair;
    set_value(a, pair.a), set_value(b, pair.b);
    *reinterpret_cast<Pair*>(to) = pair;
  }
};

VOLLEY_HOST_DEVICE inline float sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return __fdividef(1.0f, 1.0f + expf(-x));  // errs by two units in the last place, in a fifth of the instructions
#else
  return 1.0f / (1.0f + expf(-x));
#endif
}

// As torch.nn.functional.softplus.
VOLLEY_HOST_DEVICE inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

// --- Convolutions and gates of a chunk: rows [first, first + rows) of the sequence that consists of the slot's kept
// rows from the state's position on, then the segment's rows. One thread computes each item. ---

VOLLEY_HOST_DEVICE inline int conv_pairs(const Call& call, const Work& work) {
  return call.k_dim + call.v_dim / work.tiles / 2;
}
VOLLEY_HOST_DEVICE inline int conv_items(const Call& call, const Work& work, int rows) {
  return conv_pairs(call, work) * ((rows + kGroup - 1) / kGroup);
}

// Two channels of the head: where they are in a row, and where their results go.
struct ConvPlace {
  int32_t channel;
  float* to;
  int stride;
};
VOLLEY_HOST_DEVICE inline ConvPlace conv_place(const Call& call, const Work& work, int c, int padded, const Shared& s) {
  if (c < call.k_dim) return {work.k_head * call.k_dim + c, s.q + c, padded};
  c -= call.k_dim;
  if (c < call.k_dim) return {call.k_width + work.k_head * call.k_dim + c, s.k + c, padded};
  c += work.tile * (call.v_dim / work.tiles) - call.k_dim;
  return {2 * call.k_width + work.head * call.v_dim + c, s.v + c, call.v_dim};
}

// The rows before the state's position come first, then those of the tape that are replayed, then the new ones.
template <typename T, int kTaps>
VOLLEY_HOST_DEVICE inline void convolve(const Call& call, const Work& work, int32_t first, int rows, int item,
                                        int padded, const Shared& s) {
  const int pairs = conv_pairs(call, work), begin = item / pairs * kGroup;
  const ConvPlace place = conv_place(call, work, item % pairs * 2, padded, s);
  const int taps = kTaps > 0 ? kTaps : call.taps;
  constexpr int kMost = kTaps > 0 ? kTaps : 8;
  const int32_t kept_rows = taps - 1 + work.replayed, row = first + begin;
  const T* kept =
      reinterpret_cast<const T*>(work.slot + call.rows_at) + static_cast<int64_t>(row) * call.channels + place.channel;
  const T* fresh = static_cast<const T*>(call.projected) +
                   (static_cast<int64_t>(work.rows.row_begin) + row - kept_rows) * call.row_width + place.channel;
  float raw[2][kGroup + kMost - 1];
  VOLLEY_UNROLL
  for (int i = 0; i < kGroup + kMost - 1; ++i) {
    const bool is_new = row + i >= kept_rows;
    raw[0][i] = raw[1][i] = 0;
    if (begin + i < rows + taps - 1 && (is_new || !work.fresh)) {
      Pair<T>::load(is_new ? fresh : kept, raw[0][i], raw[1][i]);
    }
    kept += call.channels;
    fresh += call.row_width;
  }
  float weights[2][kMost];
  VOLLEY_UNROLL
  for (int j = 0; j < kMost; ++j) {
    if (j >= taps) break;
    weights[0][j] = call.conv[static_cast<int64_t>(place.channel) * taps + j];
    weights[1][j] = call.conv[static_cast<int64_t>(place.channel + 1) * taps + j];
  }
  VOLLEY_UNROLL
  for (int i = 0; i < kGroup; ++i) {
    if (begin + i >= rows) break;
    float sums[2] = {0, 0};
    VOLLEY_UNROLL
    for (int j = 0; j < kMost; ++j) {
      if (j >= taps) break;
      sums[0] = fmaf(weights[0][j], raw[0][i + j], sums[0]);
      sums[1] = fmaf(weights[1][j], raw[1][i + j], sums[1]);
    }
    Pair<float>::store(sums[0] * sigmoid(sums[0]), sums[1] * sigmoid(sums[1]), place.to + (begin + i) * place.stride);
  }
}

VOLLEY_HOST_DEVICE inline void take_gates(const Call& call, const Work& work, int32_t first, int at, const Shared& s) {
  const int32_t t = first + at;
  const float* gates =
      t < work.replayed
          ? reinterpret_cast<const float*>(work.slot + call.gates_at) + int64_t{t} * 2 * call.v_heads
          : call.gates + (static_cast<int64_t>(work.rows.row_begin) + t - work.replayed) * 2 * call.v_heads;
  const float a = gates[call.v_heads + work.head];
  s.beta[at] = sigmoid(gates[work.head]);
  s.decay[at] = expf(-expf(call.a_log[work.head]) * softplus(a + call.dt_bias[work.head]));
}

// A thread's items of a chunk.
template <typename T, int kTaps>
VOLLEY_HOST_DEVICE inline void prepare(const Call& call, const Work& work, int32_t first, int rows, int thread,
                                       int threads, int padded, const Shared& s) {
  const int convolutions = conv_items(call, work, rows);
  for (int item = thread; item < convolutions + rows; item += threads) {
    if (item < convolutions) {
      convolve<T, kTaps>(call, work, first, rows, item, padded, s);
    } else {
      take_gates(call, work, first, item - convolutions, s);
    }
  }
}

// Zeros the padding after k_dim in rows of q and k, once for all chunks.
VOLLEY_HOST_DEVICE inline void clear_padding(const Call& call, int padded, int thread, int threads, const Shared& s) {
  const int each = padded - call.k_dim;
  for (int i = thread; i < chunk_rows(padded) * each; i += threads) {
    const int at = i / each * padded + call.k_dim + i % each;
    s.q[at] = s.k[at] = 0;
  }
}

// --- Norms of a row's q and k, by a warp. ---

// Sums over a row's q and k; of a lane, then of the warp as a tree.
struct RowSums {
  float qq = 0, kk = 0, qk = 0;
};

// A lane's part of a row's q and k. kEach: padded / 32.
template <int kEach>
struct RowPart {
  float q[kEach], k[kEach];
};

template <int kEach>
VOLLEY_HOST_DEVICE inline RowSums read_row(const Shared& s, int at, int lane, RowPart<kEach>& part) {
  RowSums sums;
  VOLLEY_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int from = (at * kEach + i) * kWarp + lane;
    part.q[i] = s.q[from];
    part.k[i] = s.k[from];
    sums.qq = fmaf(part.q[i], part.q[i], sums.qq);
    sums.kk = fmaf(part.k[i], part.k[i], sums.kk);
    sums.qk = fmaf(part.q[i], part.k[i], sums.qk);
  }
  return sums;
}

template <int kEach>
VOLLEY_HOST_DEVICE inline void scale_row(const Call& call, int at, const RowSums& sums, int lane,
                                         const RowPart<kEach>& part, const Shared& s) {
  const float scale_q = 1.0f / (sqrtf(sums.qq + 1e-6f) * sqrtf(static_cast<float>(call.k_dim)));
  const float scale_k = 1.0f / sqrtf(sums.kk + 1e-6f);
  VOLLEY_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int to = (at * kEach + i) * kWarp + lane;
    s.q[to] = part.q[i] * scale_q;
    s.k[to] = part.k[i] * scale_k;
  }
  if (lane == 0) s.qk[at] = sums.qk * scale_q * scale_k;
}

// --- A row's step, by a thread on its part of the state. kQuads: groups of four rows that it has. ---

template <int kQuads>
struct State {
  float at[kQuads * 4][kColumns];
};

template <int kQuads>
VOLLEY_HOST_DEVICE constexpr int state_row(int lane, int i) {
  return (i / 4 * kLanes + lane) * 4 + i % 4;
}

struct alignas(16) Quad {
  float at[4];
};

template <int kQuads>
VOLLEY_HOST_DEVICE inline void load_state(const Call& call, const Work& work, int thread, State<kQuads>& state) {
  const float* from = reinterpret_cast<const float*>(work.slot + call.state_at) +
                      static_cast<int64_t>(work.head) * call.k_dim * call.v_dim + thread / kLanes * kColumns;
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    const int row = state_row<kQuads>(thread % kLanes, i);
    Quad quad = {};
    if (!work.fresh && row < call.k_dim) {
      quad = *reinterpret_cast<const Quad*>(from + static_cast<int64_t>(row) * call.v_dim);
    }
    VOLLEY_UNROLL
    for (int c = 0; c < kColumns; ++c) state.at[i][c] = quad.at[c];
  }
}

template <int kQuads>
VOLLEY_HOST_DEVICE inline void store_state(const Call& call, const Work& work, int thread, const State<kQuads>& state) {
  float* to = reinterpret_cast<float*>(work.slot + call.state_at) +
              static_cast<int64_t>(work.head) * call.k_dim * call.v_dim + thread / kLanes * kColumns;
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads * 4; ++i) {
    const int row = state_row<kQuads>(thread % kLanes, i);
    if (row >= call.k_dim) continue;
    Quad quad;
    VOLLEY_UNROLL
    for (int c = 0; c < kColumns; ++c) quad.at[c] = state.at[i][c];
    *reinterpret_cast<Quad*>(to + static_cast<int64_t>(row) * call.v_dim) = quad;
  }
}

// The thread's part of S^T k and, where kOut, of S^T q, of the state before the row.
template <int kQuads, bool kOut>
VOLLEY_HOST_DEVICE inline void read_state(const State<kQuads>& state, const float* k, const float* q, int lane,
                                          float (&memory)[kColumns], float (&read)[kColumns]) {
  VOLLEY_UNROLL
  for (int c = 0; c < kColumns; ++c) memory[c] = read[c] = 0;
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads; ++i) {
    const Quad ks = *reinterpret_cast<const Quad*>(k + (i * kLanes + lane) * 4);
    Quad qs = {};
    if (kOut) qs = *reinterpret_cast<const Quad*>(q + (i * kLanes + lane) * 4);
    VOLLEY_UNROLL
    for (int e = 0; e < 4; ++e) {
      VOLLEY_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        memory[c] = fmaf(ks.at[e], state.at[i * 4 + e][c], memory[c]);
        if (kOut) read[c] = fmaf(qs.at[e], state.at[i * 4 + e][c], read[c]);
      }
    }
  }
}

// memory: S^T k of one column, before the row.
VOLLEY_HOST_DEVICE inline float delta_of(float v, float beta, float decay, float memory) {
  return beta * fmaf(-decay, memory, v);
}

// S <- decay S + k delta^T
template <int kQuads>
VOLLEY_HOST_DEVICE inline void change_state(State<kQuads>& state, const float* k, float decay, int lane,
                                            const float (&delta)[kColumns]) {
  VOLLEY_UNROLL
  for (int i = 0; i < kQuads; ++i) {
    const Quad ks = *reinterpret_cast<const Quad*>(k + (i * kLanes + lane) * 4);
    VOLLEY_UNROLL
    for (int e = 0; e < 4; ++e) {
      VOLLEY_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        state.at[i * 4 + e][c] = fmaf(ks.at[e], delta[c], decay * state.at[i * 4 + e][c]);
      }
    }
  }
}

// S^T q of one column after the row, from that before it.
VOLLEY_HOST_DEVICE inline float output_of(float read, float decay, float qk, float delta) {
  return fmaf(qk, delta, decay * read);
}

// --- Outputs of a row, by a warp. ---

VOLLEY_HOST_DEVICE inline float output_squares(const float* o, int v_dim, int lane) {
  float sum = 0;
  for (int i = 2 * lane; i < v_dim; i += 2 * kWarp) sum = fmaf(o[i + 1], o[i + 1], fmaf(o[i], o[i], sum));
  return sum;
}

// RMSNorm(o) * norm * silu(z) of row `row` of the call.
template <typename T>
VOLLEY_HOST_DEVICE inline void write_output(const Call& call, int32_t head, int32_t row, const float* o, float squares,
                                            int lane) {
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(call.v_dim) + call.eps);
  const T* z = static_cast<const T*>(call.projected) + static_cast<int64_t>(row) * call.row_width + call.channels +
               head * call.v_dim;
  T* out = static_cast<T*>(call.out) + static_cast<int64_t>(row) * call.v_width + head * call.v_dim;
  for (int i = 2 * lane; i < call.v_dim; i += 2 * kWarp) {
    float a, b;
    Pair<T>::load(z + i, a, b);
    Pair<T>::store(o[i] * inverse * call.norm[i] * (a * sigmoid(a)),
                   o[i + 1] * inverse * call.norm[i + 1] * (b * sigmoid(b)), out + i);
  }
}

template <typename T>
VOLLEY_HOST_DEVICE inline void clear_output(const Call& call, int32_t head, int32_t row, int lane) {
  T* out = static_cast<T*>(call.out) + static_cast<int64_t>(row) * call.v_width + head * call.v_dim;
  for (int i = 2 * lane; i < call.v_dim; i += 2 * kWarp) Pair<T>::store(0, 0, out + i);
}

// --- The slot moves on when all v heads of the k head have read its memory: its kept rows then begin at the state's
// position. Rows that it kept before come first, because the others may overwrite them. ---

// Rows whose source is in the slot. At most taps - 2, because at least one row is committed.
VOLLEY_HOST_DEVICE inline int32_t moved_rows(const Call& call, const Work& work) {
  const int32_t rows = call.taps - 1 - work.committed;
  return rows > 0 ? rows : 0;
}

// A piece is the elements that one copy moves. Below: how many pieces a row of the k head's channels has.
template <typename T>
inline constexpr int kPiece = 16 / sizeof(T);
template <typename T>
VOLLEY_HOST_DEVICE inline int pieces(const Call& call) {
  return (2 * call.k_dim + call.v_heads / call.k_heads * call.v_dim) / kPiece<T>;
}
template <typename T>
VOLLEY_HOST_DEVICE inline int32_t piece_channel(const Call& call, const Work& work, int piece) {
  const int32_t c = piece * kPiece<T>;
  if (c < call.k_dim) return work.k_head * call.k_dim + c;
  if (c < 2 * call.k_dim) return call.k_width + work.k_head * call.k_dim + c - call.k_dim;
  return 2 * call.k_width + work.k_head * (call.v_heads / call.k_heads) * call.v_dim + c - 2 * call.k_dim;
}

template <typename T>
VOLLEY_HOST_DEVICE inline void move_kept(const Call& call, const Work& work, int thread, int threads) {
  T* kept = reinterpret_cast<T*>(work.slot + call.rows_at);
  const int32_t first = work.replayed + work.committed, rows = moved_rows(call, work);
  for (int p = thread; p < pieces<T>(call); p += threads) {
    const int32_t channel = piece_channel<T>(call, work, p);
    for (int32_t i = 0; i < rows; ++i) {  // ascending: a row moves towards the beginning
      Quad quad = {};
      if (!work.fresh) quad = *reinterpret_cast<const Quad*>(kept + int64_t{first + i} * call.channels + channel);
      *reinterpret_cast<Quad*>(kept + int64_t{i} * call.channels + channel) = quad;
    }
  }
}

template <typename T>
VOLLEY_HOST_DEVICE inline void keep_new(const Call& call, const Work& work, int thread, int threads) {
  T* kept = reinterpret_cast<T*>(work.slot + call.rows_at);
  const int32_t tape = work.rows.rows - work.committed, moved = moved_rows(call, work), n = pieces<T>(call);
  // Kept row i is row i - (taps - 1) + committed of the segment.
  const T* from = static_cast<const T*>(call.projected) +
                  (static_cast<int64_t>(work.rows.row_begin) + work.committed - (call.taps - 1)) * call.row_width;
  for (int32_t i = moved * n + thread; i < (call.taps - 1 + tape) * n; i += threads) {
    const int32_t row = i / n, channel = piece_channel<T>(call, work, i % n);
    *reinterpret_cast<Quad*>(kept + int64_t{row} * call.channels + channel) =
        *reinterpret_cast<const Quad*>(from + int64_t{row} * call.row_width + channel);
  }
  float* gates = reinterpret_cast<float*>(work.slot + call.gates_at);
  const float* new_gates = call.gates + (static_cast<int64_t>(work.rows.row_begin) + work.committed) * 2 * call.v_heads;
  const int32_t heads = call.v_heads / call.k_heads;
  for (int32_t i = thread; i < tape * 2 * heads; i += threads) {
    const int32_t in_row = i % (2 * heads);
    const int64_t at = int64_t{i / (2 * heads)} * 2 * call.v_heads + (in_row < heads ? 0 : call.v_heads) +
                       work.k_head * heads + in_row % heads;
    gates[at] = new_gates[at];
  }
  if (thread != 0) return;
  DeltaCursor* cursor = cursor_of(work);
  cursor->position = (work.fresh ? 0 : cursor->position) + work.replayed + work.committed;
  cursor->tape = tape;
  cursor->arrived = 0;
}

}  // namespace volley::ops::delta
