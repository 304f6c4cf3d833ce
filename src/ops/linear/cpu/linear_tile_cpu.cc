// The portable kernels: products of tiles in fp32, and the ends of finished sums. Compiled once per instruction set.
#include <cstring>

#include "ops/linear/cpu/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/cpu/linear_tile_cpu.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h, these choose their own per-target guards.
#include <hwy/contrib/math/math-inl.h>

#include "ops/cpu_bf16-inl.h"
#include "ops/linear/cpu/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The sums of a tile stay in registers: 16 of them (32 from AVX-512 on), less those for weights and x.
constexpr int kSumVecs = HWY_MAX_BYTES >= 64 ? 24 : 12;
constexpr int kMaxRows = HWY_MAX(1, HWY_MIN(kSumVecs / kVecs, 8));
constexpr int panels_in_flight(int rows) {
  return HWY_MAX(1, HWY_MIN(4, kSumVecs / (2 * kVecs * rows)));
}

// c += x * w for one line of weights and one row: two steps of k from bf16, one from fp32.
template <typename W>
struct Line;

template <>
struct Line<BFloat16> {
  static constexpr int kSteps = 2;
  FVec even[kVecs], odd[kVecs];

  HWY_INLINE void load(const char* line) {
    const F32 d;
    const hn::RebindToUnsigned<F32> du;
    for (int v = 0; v < kVecs; ++v) {
      const auto pair = hn::Load(du, reinterpret_cast<const uint32_t*>(line) + v * kLanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(pair));
      odd[v] = hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u)));
    }
  }
  HWY_INLINE void add(const float* x, int64_t step, FVec* c) const {
    const F32 d;
    const auto x0 = hn::Set(d, x[0]), x1 = hn::Set(d, x[step]);
    for (int v = 0; v < kVecs; ++v) c[v] = hn::MulAdd(x1, odd[v], hn::MulAdd(x0, even[v], c[v]));
  }
};

template <>
struct Line<float> {
  static constexpr int kSteps = 1;
  FVec w[kVecs];

  HWY_INLINE void load(const char* line) {
    for (int v = 0; v < kVecs; ++v) w[v] = hn::Load(F32(), reinterpret_cast<const float*>(line) + v * kLanes);
  }
  HWY_INLINE void add(const float* x, int64_t, FVec* c) const {
    const auto x0 = hn::Set(F32(), x[0]);
    for (int v = 0; v < kVecs; ++v) c[v] = hn::MulAdd(x0, w[v], c[v]);
  }
};

// Rows [row, row + kRows) of the tile times kPanels panels.
template <typename W, int kRows, int kPanels>
void multiply(const TileProduct& t, int64_t row, int64_t panel, const char* next) {
  const F32 d;
  const auto sums = [&](int r, int p, int v) {
    return t.sums + ((panel + p) * t.rows + row + r) * kPanelWidth + v * kLanes;
  };
  FVec c[kRows][kPanels][kVecs];
  for_sums<kRows, kPanels>(
      [&](int r, int p, int v) { c[r][p][v] = t.first ? hn::Zero(d) : hn::Load(d, sums(r, p, v)); });
  constexpr int kSteps = Line<W>::kSteps;
  const int64_t lines = (t.k + kSteps - 1) / kSteps;
  const char* weights = t.weights + panel * t.panel_bytes;
  const float* x = static_cast<const float*>(t.x) + row;
  const int64_t rows = t.rows;
  for (int64_t i = 0; i < lines; ++i, x += kSteps * rows) {
    Line<W> w[kPanels];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      w[p].load(weights + p * t.panel_bytes + i * kLineBytes);
      if (kRows > 2) hwy::Prefetch(next + p * t.panel_bytes + i * kLineBytes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) w[p].add(x + r, rows, c[r][p]);
    }
  }
  for_sums<kRows, kPanels>([&](int r, int p, int v) { hn::Store(c[r][p][v], d, sums(r, p, v)); });
}

// All panels for rows [row, row + kRows).
template <typename W, int kRows>
void multiply_rows(const TileProduct& t, int64_t row) {
  constexpr int kPanels = panels_in_flight(kRows);
  for (int64_t p = 0; p < t.panels;) {
    const int64_t count = p + kPanels <= t.panels ? kPanels : 1;
    const char* next = p + count < t.panels ? t.weights + (p + count) * t.panel_bytes : t.next;
    if (count == kPanels) {
      multiply<W, kRows, kPanels>(t, row, p, next);
    } else {
      multiply<W, kRows, 1>(t, row, p, next);
    }
    p += count;
  }
}

template <typename W>
void multiply_tile(const TileProduct& t) {
  for_row_parts<kMaxRows>(t.rows, [&](auto rows, int64_t row) { multiply_rows<W, decltype(rows)::value>(t, row); });
}

void multiply_bf16(const TileProduct& t) {
  multiply_tile<BFloat16>(t);
}
void multiply_f32(const TileProduct& t) {
  multiply_tile<float>(t);
}

// gate / (1 + exp(-z)). Exp is good up to 104; from 88 on the quotient is below 1e-36 anyway.
HWY_INLINE FVec times_sigmoid(FVec gate, FVec z) {
  const F32 d;
  const auto e = hn::Exp(d, hn::Min(hn::Neg(z), hn::Set(d, 88.0f)));
  return hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e));
}
HWY_INLINE FVec silu(FVec gate) {
  return times_sigmoid(gate, gate);
}
HWY_INLINE FVec gelu(FVec gate) {
  const F32 d;
  const auto factor = hn::MulAdd(hn::Mul(gate, gate), hn::Set(d, kGeluCubic), hn::Set(d, kGeluLinear));
  return times_sigmoid(gate, hn::Mul(gate, factor));
}

// gate / (1 + exp(-alpha * gate)) * (up + 1), of clamped ones. A NaN stays one: it is the second operand.
HWY_INLINE FVec clamped_swiglu(FVec gate, FVec up, const SwiGluClamp& clamp) {
  const F32 d;
  const auto limit = hn::Set(d, clamp.limit);
  gate = hn::Min(limit, gate);
  up = hn::Max(hn::Neg(limit), hn::Min(limit, up));
  const auto e = hn::Exp(d, hn::Min(hn::Mul(gate, hn::Set(d, -clamp.alpha)), hn::Set(d, 88.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), hn::Add(up, hn::Set(d, 1.0f)));
}

HWY_INLINE void store(FVec v, float* to) {
  hn::StoreU(v, F32(), to);
}
HWY_INLINE void store(FVec v, uint16_t* to) {
  store_bf16(F32(), v, to);
}

// 16 outputs of one row. bias, up_bias: theirs, or null.
template <EndKind kEnd, typename T>
HWY_INLINE void write_panel(const float* sums, const float* ups, const float* bias, const float* up_bias,
                            const SwiGluClamp& clamp, T* y) {
  const F32 d;
  for (int i = 0; i < kPanelWidth; i += kLanes) {
    auto v = hn::Load(d, sums + i);
    if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + i));
    if constexpr (kEnd == EndKind::kAdd) v = hn::Add(hn::LoadU(d, y + i), v);
    if constexpr (has_gates(kEnd)) {
      auto up = hn::Load(d, ups + i);
      if (up_bias != nullptr) up = hn::Add(up, hn::LoadU(d, up_bias + i));
      if constexpr (kEnd == EndKind::kSwiGlu) v = hn::Mul(silu(v), up);
      if constexpr (kEnd == EndKind::kGeGlu) v = hn::Mul(gelu(v), up);
      if constexpr (kEnd == EndKind::kClampedSwiGlu) v = clamped_swiglu(v, up, clamp);
    }
    store(v, y + i);
  }
}

// A panel that y ends in goes through whole vectors as well, so that a column's bits do not depend on where y ends.
template <EndKind kEnd, typename T>
void write_rows(const TileOutput& o) {
  constexpr int64_t kStep = has_gates(kEnd) ? 2 : 1;
  const auto at = [](const float* bias, int64_t column) { return bias == nullptr ? nullptr : bias + column; };
  const int64_t panel_sums = o.rows * kPanelWidth;
  for (int64_t r = 0; r < o.rows; ++r) {
    const float* sums = o.sums + r * kPanelWidth;
    T* y = static_cast<T*>(o.y) + r * o.stride;
    const int64_t end = HWY_MIN(o.columns, o.panels / kStep * kPanelWidth);
    int64_t column = 0;
    for (; column + kPanelWidth <= end; column += kPanelWidth, sums += kStep * panel_sums) {
      write_panel<kEnd>(sums, sums + panel_sums, at(o.bias, column), at(o.up_bias, column), o.clamp, y + column);
    }
    if (column < end) {
      T some[kPanelWidth] = {};
      float biases[2][kPanelWidth] = {};
      std::memcpy(some, y + column, (end - column) * sizeof(T));
      const auto some_of = [&](const float* bias, float* to) -> const float* {
        if (bias == nullptr) return nullptr;
        std::memcpy(to, bias + column, (end - column) * sizeof(float));
        return to;
      };
      write_panel<kEnd>(sums, sums + panel_sums, some_of(o.bias, biases[0]), some_of(o.up_bias, biases[1]), o.clamp,
                        some);
      std::memcpy(y + column, some, (end - column) * sizeof(T));
    }
  }
}

void write(const TileOutput& o) {
  const bool f32 = o.dtype == DType::kF32;
  switch (o.kind) {
    case EndKind::kStore:
      return f32 ? write_rows<EndKind::kStore, float>(o) : write_rows<EndKind::kStore, uint16_t>(o);
    case EndKind::kAdd:
      return write_rows<EndKind::kAdd, float>(o);
    case EndKind::kSwiGlu:
      return f32 ? write_rows<EndKind::kSwiGlu, float>(o) : write_rows<EndKind::kSwiGlu, uint16_t>(o);
    case EndKind::kGeGlu:
      return f32 ? write_rows<EndKind::kGeGlu, float>(o) : write_rows<EndKind::kGeGlu, uint16_t>(o);
    case EndKind::kClampedSwiGlu:
      return f32 ? write_rows<EndKind::kClampedSwiGlu, float>(o) : write_rows<EndKind::kClampedSwiGlu, uint16_t>(o);
  }
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {

HWY_EXPORT(multiply_bf16);
HWY_EXPORT(multiply_f32);
HWY_EXPORT(write);

void multiply_tile_bf16(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_bf16)(product);
}
void multiply_tile_f32(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(product);
}
void write_tile(const TileOutput& output) {
  HWY_DYNAMIC_DISPATCH(write)(output);
}

}  // namespace volley::ops
#endif
