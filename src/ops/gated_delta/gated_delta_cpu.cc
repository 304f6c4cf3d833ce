#include "ops/gated_delta/gated_delta_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cpu/thread_pool.h"
#include "ops/elements_cpu.h"
#include "ops/gated_delta/gated_delta_layout.h"

// Arrays of vectors cannot be made of sizeless ones; machines that have those have a fixed-size target too.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gated_delta/gated_delta_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef VOLLEY_OPS_GATED_DELTA_CPU_ONCE_
#define VOLLEY_OPS_GATED_DELTA_CPU_ONCE_
namespace volley::ops {

// The rows of one segment, and how far they go into the state.
struct DeltaSegment {
  RowSegment rows;
  std::byte* slot = nullptr;
  bool fresh = false;     // the segment begins its sequence
  int32_t replayed = 0;   // rows of the tape that go into the state first
  int32_t committed = 0;  // rows of the segment that go into the state
};

// A unit of work: one v head of a segment. Units change disjoint states; rows, tape and cursor they only read.
struct DeltaUnit {
  const GatedDelta& args;
  const DeltaLayout& layout;
  const DeltaSegment& segment;
  int32_t head = 0;
  float* scratch = nullptr;  // unit_floats()
};

// Rows that are prepared together and then taken through a part of the state that stays close by.
inline constexpr int kDeltaBlock = 16;

inline int64_t unit_floats(const DeltaShape& shape) {
  return int64_t{kDeltaBlock} * 2 * (shape.k_dim + shape.v_dim) + int64_t{shape.k_dim} * shape.v_dim;
}

// The slot's kept rows and the segment's rows as one sequence: the rows before the state's position, those of the tape
// that are replayed, the new ones.
template <typename T>
struct DeltaHistory {
  const T* kept;
  int64_t kept_rows, kept_stride;
  const T* fresh;
  int64_t fresh_stride;

  DeltaHistory(const GatedDelta& args, const DeltaLayout& layout, const DeltaSegment& segment)
      : kept(reinterpret_cast<const T*>(segment.slot + layout.rows)),
        kept_rows(args.shape.taps - 1 + segment.replayed),
        kept_stride(args.shape.channels()),
        fresh(args.projected.as<T>() + segment.rows.row_begin * args.projected.dim(1)),
        fresh_stride(args.projected.dim(1)) {}
  const T* row(int64_t i) const {
    return i < kept_rows ? kept + i * kept_stride : fresh + (i - kept_rows) * fresh_stride;
  }
};

}  // namespace volley::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// As torch.nn.functional.softplus.
float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Sixteen partial sums, element i in sum i mod 16, then halved: the order depends only on n.
float sum_of_squares(const float* x, int n) {
  float sums[16] = {};
  for (int i = 0; i < n; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void scale_to_unit(float* x, int n, float scale) {
  const float inverse = scale / std::sqrt(sum_of_squares(x, n) + 1e-6f);
  for (int i = 0; i < n; ++i) x[i] *= inverse;
}

// Rows of a block, ready for the state.
struct BlockValues {
  float* q;  // [kDeltaBlock][k_dim], and so is k
  float* k;
  float* v;  // [kDeltaBlock][v_dim], and so is o
  float* o;
  float decay[kDeltaBlock], beta[kDeltaBlock];

  BlockValues(const DeltaShape& shape, float* scratch)
      : q(scratch),
        k(q + kDeltaBlock * shape.k_dim),
        v(k + kDeltaBlock * shape.k_dim),
        o(v + kDeltaBlock * shape.v_dim) {}
};

// silu of the convolution of `n` channels from `channel` on, for row t of the history after its first taps - 1.
template <typename T>
void convolve(const DeltaHistory<T>& history, int64_t t, const GatedDelta& args, int64_t channel, int n, float* out) {
  const int taps = args.shape.taps;
  const float* weights = args.conv.as<float>() + channel * taps;
  std::fill_n(out, n, 0.0f);
  for (int j = 0; j < taps; ++j) {
    const T* row = history.row(t + j) + channel;
    for (int c = 0; c < n; ++c) out[c] += weights[c * taps + j] * as_float(row[c]);
  }
  for (int c = 0; c < n; ++c) out[c] *= sigmoid(out[c]);
}

template <typename T>
void prepare_row(const DeltaUnit& unit, const DeltaHistory<T>& history, int64_t t, int at, BlockValues& block) {
  const GatedDelta& args = unit.args;
  const DeltaShape& shape = args.shape;
  const DeltaSegment& segment = unit.segment;
  const int k_head = unit.head / (shape.v_heads / shape.k_heads);
  float* q = block.q + at * shape.k_dim;
  float* k = block.k + at * shape.k_dim;
  convolve(history, t, args, int64_t{k_head} * shape.k_dim, shape.k_dim, q);
  convolve(history, t, args, shape.k_width() + int64_t{k_head} * shape.k_dim, shape.k_dim, k);
  convolve(history, t, args, 2 * shape.k_width() + int64_t{unit.head} * shape.v_dim, shape.v_dim,
           block.v + at * shape.v_dim);
  scale_to_unit(q, shape.k_dim, 1.0f / std::sqrt(static_cast<float>(shape.k_dim)));
  scale_to_unit(k, shape.k_dim, 1.0f);
  const float* gates =
      t < segment.replayed
          ? reinterpret_cast<const float*>(segment.slot + unit.layout.gates) + t * 2 * shape.v_heads
          : args.gates.as<float>() + (segment.rows.row_begin + t - segment.replayed) * 2 * shape.v_heads;
  const float a = gates[shape.v_heads + unit.head];
  block.beta[at] = sigmoid(gates[unit.head]);
  block.decay[at] =
      std::exp(-std::exp(args.a_log.as<float>()[unit.head]) * softplus(a + args.dt_bias.as<float>()[unit.head]));
}

// One row's step on kColumns columns of the state. A column's values do not depend on how many there are.
template <int kColumns>
void step_columns(const BlockValues& block, int at, const DeltaShape& shape, int column, float* HWY_RESTRICT state) {
  const DF d;
  constexpr int kVectors = kColumns / kLanes;
  const float* HWY_RESTRICT q = block.q + at * shape.k_dim;
  const float* HWY_RESTRICT k = block.k + at * shape.k_dim;
  const int64_t vector = int64_t{at} * shape.v_dim + column;
  const auto decay = hn::Set(d, block.decay[at]), beta = hn::Set(d, block.beta[at]);
  hn::Vec<DF> sum[kVectors], delta[kVectors];
  for (auto& s : sum) s = hn::Zero(d);
  for (int i = 0; i < shape.k_dim; ++i) {
    float* HWY_RESTRICT row = state + int64_t{i} * shape.v_dim + column;
    const auto ki = hn::Set(d, k[i]);
    for (int j = 0; j < kVectors; ++j) {
      const auto s = hn::Mul(hn::LoadU(d, row + j * kLanes), decay);
      hn::StoreU(s, d, row + j * kLanes);
      sum[j] = hn::MulAdd(ki, s, sum[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    delta[j] = hn::Mul(hn::Sub(hn::LoadU(d, block.v + vector + j * kLanes), sum[j]), beta);
    sum[j] = hn::Zero(d);
  }
  for (int i = 0; i < shape.k_dim; ++i) {
    float* HWY_RESTRICT row = state + int64_t{i} * shape.v_dim + column;
    const auto ki = hn::Set(d, k[i]), qi = hn::Set(d, q[i]);
    for (int j = 0; j < kVectors; ++j) {
      const auto s = hn::MulAdd(ki, delta[j], hn::LoadU(d, row + j * kLanes));
      hn::StoreU(s, d, row + j * kLanes);
      sum[j] = hn::MulAdd(qi, s, sum[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) hn::StoreU(sum[j], d, block.o + vector + j * kLanes);
}

void step_block(const BlockValues& block, int rows, const DeltaShape& shape, float* state) {
  int column = 0;
  for (; column + 64 <= shape.v_dim; column += 64) {
    for (int at = 0; at < rows; ++at) step_columns<64>(block, at, shape, column, state);
  }
  for (; column < shape.v_dim; column += 16) {
    for (int at = 0; at < rows; ++at) step_columns<16>(block, at, shape, column, state);
  }
}

// out = RMSNorm(o) * norm * silu(z) of the segment's row `row`.
template <typename T>
void finish_row(const DeltaUnit& unit, int64_t row, const float* o) {
  const GatedDelta& args = unit.args;
  const int dim = args.shape.v_dim;
  const int64_t at = unit.segment.rows.row_begin + row, head = int64_t{unit.head} * dim;
  const T* z = args.projected.as<T>() + at * args.projected.dim(1) + args.shape.channels() + head;
  const float* weight = args.norm.as<float>();
  const float inverse = 1.0f / std::sqrt(sum_of_squares(o, dim) / static_cast<float>(dim) + args.eps);
  T* out = args.out.as<T>() + at * args.out.dim(1) + head;
  for (int i = 0; i < dim; ++i) {
    const float gate = as_float(z[i]);
    put_float(o[i] * inverse * weight[i] * (gate * sigmoid(gate)), out[i]);
  }
}

// Applies rows [begin, end) of the history after the kept ones to `state`; the segment's own rows store their output.
template <typename T>
void take_rows(const DeltaUnit& unit, const DeltaHistory<T>& history, int64_t begin, int64_t end, float* state) {
  const DeltaShape& shape = unit.args.shape;
  BlockValues block(shape, unit.scratch);
  for (int64_t first = begin; first < end; first += kDeltaBlock) {
    const int rows = static_cast<int>(std::min<int64_t>(kDeltaBlock, end - first));
    for (int at = 0; at < rows; ++at) prepare_row(unit, history, first + at, at, block);
    step_block(block, rows, shape, state);
    for (int at = 0; at < rows; ++at) {
      const int64_t row = first + at - unit.segment.replayed;
      if (row >= 0) finish_row<T>(unit, row, block.o + at * shape.v_dim);
    }
  }
}

template <typename T>
void run_unit_of(const DeltaUnit& unit) {
  const DeltaShape& shape = unit.args.shape;
  const DeltaSegment& segment = unit.segment;
  const int64_t size = int64_t{shape.k_dim} * shape.v_dim;
  float* state = reinterpret_cast<float*>(segment.slot + unit.layout.state) + unit.head * size;
  if (segment.fresh) std::fill_n(state, size, 0.0f);
  const DeltaHistory<T> history(unit.args, unit.layout, segment);
  const int64_t committed = segment.replayed + segment.committed, all = segment.replayed + segment.rows.rows;
  take_rows(unit, history, 0, committed, state);
  if (committed == all) return;
  float* copy = unit.scratch + unit_floats(shape) - size;
  std::copy_n(state, size, copy);
  take_rows(unit, history, committed, all, copy);
}

void run_unit(const DeltaUnit& unit) {
  unit.args.state.dtype == DType::kF32 ? run_unit_of<float>(unit) : run_unit_of<BFloat16>(unit);
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {
namespace {

HWY_EXPORT(run_unit);

DeltaCursor& cursor_of(const DeltaSegment& segment) {
  return *reinterpret_cast<DeltaCursor*>(segment.slot);
}

// Positions are the engine's own numbers: with a wrong one the text would be wrong, and no user could tell.
DeltaSegment plan_segment(const Rows& rows, const GatedDelta& args, const DeltaLayout& layout, int32_t index) {
  DeltaSegment segment;
  segment.rows = rows.segments[index];
  VOLLEY_CHECK(segment.rows.slot >= 0 && segment.rows.slot < args.state.slots);
  VOLLEY_CHECK(segment.rows.row_begin >= 0 && segment.rows.row_begin + segment.rows.rows <= rows.rows);
  segment.slot = args.state.base + segment.rows.slot * layout.bytes;
  const int32_t position = rows.cache_positions.as<int32_t>()[segment.rows.row_begin];
  DeltaCursor& cursor = cursor_of(segment);
  segment.fresh = position == 0;
  if (segment.fresh) {
    cursor = {};
    const int64_t before =
        (args.shape.taps - 1) * args.shape.channels() * static_cast<int64_t>(dtype_size(args.state.dtype));
    std::memset(segment.slot + layout.rows, 0, static_cast<size_t>(before));
  }
  segment.replayed = position - cursor.position;
  VOLLEY_CHECK(segment.replayed >= 0 && segment.replayed <= cursor.tape);
  segment.committed = std::max(1, segment.rows.rows - args.state.tape_rows);
  return segment;
}

// Moves the slot on: its kept rows now begin at the state's position.
template <typename T>
void move_on(const GatedDelta& args, const DeltaLayout& layout, const DeltaSegment& segment) {
  const DeltaShape& shape = args.shape;
  const DeltaHistory<T> history(args, layout, segment);
  const int32_t tape = segment.rows.rows - segment.committed;
  T* kept = reinterpret_cast<T*>(segment.slot + layout.rows);
  const int64_t first = segment.replayed + segment.committed;
  for (int64_t i = 0; i < shape.taps - 1 + tape; ++i) {
    // Rows move towards the beginning, so none is overwritten before it was read.
    std::copy_n(history.row(first + i), shape.channels(), kept + i * shape.channels());
  }
  const float* gates = args.gates.as<float>() + int64_t{segment.rows.row_begin + segment.committed} * 2 * shape.v_heads;
  std::copy_n(gates, int64_t{tape} * 2 * shape.v_heads, reinterpret_cast<float*>(segment.slot + layout.gates));
  DeltaCursor& cursor = cursor_of(segment);
  cursor.position += static_cast<int32_t>(first);
  cursor.tape = tape;
}

void gated_delta_cpu(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch) {
  const DeltaShape& shape = args.shape;
  const DeltaLayout layout(shape, args.state.tape_rows, args.state.dtype);
  ArenaScope scope(scratch);
  const TensorView memory = scratch.take(DType::kF32, {stream.threads(), unit_floats(shape)});
  const TensorView planned =
      scratch.take(DType::kU8, {std::max(1, rows.n_segments) * static_cast<int64_t>(sizeof(DeltaSegment))});
  if (stream.dry()) return;
  auto* segments = static_cast<DeltaSegment*>(planned.data);
  int32_t n = 0, covered = 0;
  for (int32_t i = 0; i < rows.n_segments; ++i) {
    if (rows.segments[i].rows == 0) continue;
    segments[n] = plan_segment(rows, args, layout, i);
    covered += segments[n++].rows.rows;
  }
  if (covered < rows.rows) std::memset(args.out.data, 0, static_cast<size_t>(args.out.bytes()));
  const auto run = HWY_DYNAMIC_DISPATCH(run_unit);
  ThreadPool& pool = stream.pool();
  pool.parallel_for(int64_t{n} * shape.v_heads, [&](int64_t task, int worker) {
    const auto head = static_cast<int32_t>(task % shape.v_heads);
    run({args, layout, segments[task / shape.v_heads], head, memory.as<float>() + worker * unit_floats(shape)});
  });
  pool.parallel_for(n, [&](int64_t i, int) {
    args.state.dtype == DType::kF32 ? move_on<float>(args, layout, segments[i])
                                    : move_on<BFloat16>(args, layout, segments[i]);
  });
}

}  // namespace

const GatedDeltaKernels GatedDeltaKernels::kCpu = {gated_delta_cpu};

}  // namespace volley::ops
#endif
