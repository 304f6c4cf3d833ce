// Products of fp32 rows with weights that are codes, on any CPU: codes become fp32 in registers. Compiled once per
// instruction set.
#include "ops/linear/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_codes_tile_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kPanelWidth>;
using U32 = hn::RebindToUnsigned<F32>;
using FVec = hn::Vec<F32>;
using UVec = hn::Vec<U32>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

// Value of code kCode in the lower half of each word.
struct Fp8 {
  static constexpr int kPairs = 2;  // codes of half a word
  static constexpr bool kZeros = false;
  // Exponent and mantissa, moved to where fp32 has them, are 2^120 times too small; so are those of subnormal codes.
  template <int kCode>
  static HWY_INLINE FVec value(UVec half, FVec) {
    const F32 d;
    const hn::RebindToSigned<F32> di;
    const auto moved = hn::ShiftRight<4>(hn::BitCast(di, hn::ShiftLeft<24 - 8 * kCode>(half)));
    const auto kept = hn::And(moved, hn::Set(di, static_cast<int32_t>(0x87f00000u)));
    return hn::Mul(hn::BitCast(d, kept), hn::Set(d, 0x1p120f));
  }
};

// Reads int4 codes less their zero point.
template <bool kWithZeros>
struct Int4 {
  static constexpr int kPairs = 4;
  static constexpr bool kZeros = kWithZeros;
  // Bits 4 * kCode of the mantissa of 2^(23 - 4 * kCode) count as what they are.
  template <int kCode>
  static HWY_INLINE FVec value(UVec half, FVec zero) {
    const F32 d;
    const U32 du;
    constexpr float kOne = static_cast<float>(1 << (23 - 4 * kCode));
    const auto code = hn::And(half, hn::Set(du, 0xfu << (4 * kCode)));
    const auto from = kZeros ? hn::Add(hn::Set(d, kOne), zero) : hn::Set(d, kOne + 8);  // exact
    return hn::Sub(hn::BitCast(d, hn::Or(code, hn::BitCast(du, hn::Set(d, kOne)))), from);
  }
};

struct Fp4 {
  static constexpr int kPairs = 4;
  static constexpr bool kZeros = false;
  // As Fp8, with an exponent of two bits.
  template <int kCode>
  static HWY_INLINE FVec value(UVec half, FVec) {
    const F32 d;
    const hn::RebindToSigned<F32> di;
    const auto moved = hn::ShiftRight<6>(hn::BitCast(di, hn::ShiftLeft<28 - 4 * kCode>(half)));
    const auto kept = hn::And(moved, hn::Set(di, static_cast<int32_t>(0x81c00000u)));
    return hn::Mul(hn::BitCast(d, kept), hn::Set(d, 0x1p126f));
  }
};

// Rows that go through a panel together: their sums, and what widening takes, stay in registers.
constexpr int kVecs = 16 / kLanes;  // that hold a panel's 16 outputs
constexpr int kMaxRows = HWY_MAX(1, HWY_MIN((HWY_MAX_BYTES >= 64 ? 16 : 8) / kVecs, 8));
// One row waits for its own sums; two panels at a time wait less.
constexpr int panels_in_flight(int rows) {
  return rows * 2 * kVecs <= (HWY_MAX_BYTES >= 64 ? 16 : 8) ? 2 : 1;
}

template <typename Code, int kRows, int kPanels, int kCode>
HWY_INLINE void add_pair(const UVec (&words)[kPanels][kVecs], const FVec (&zeros)[kPanels][kVecs], const float* x,
                         int64_t rows, FVec (&c)[kRows][kPanels][kVecs]) {
  const F32 d;
#pragma GCC unroll 16
  for (int odd = 0; odd < 2; ++odd) {
    const float* column = x + (2 * kCode + odd) * rows;
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        const auto half = odd == 0 ? words[p][v] : hn::ShiftRight<16>(words[p][v]);
        const auto value = Code::template value<kCode>(half, zeros[p][v]);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) c[r][p][v] = hn::MulAdd(hn::Set(d, column[r]), value, c[r][p][v]);
      }
    }
  }
}

template <typename Code, int kRows, int kPanels>
void multiply(const TileProduct& t, int64_t row, int64_t panel) {
  const F32 d;
  const U32 du;
  constexpr int64_t kColumns = 2 * Code::kPairs;  // of 64 bytes
  const char* weights = t.weights + panel * t.panel_bytes;
  const float* x = static_cast<const float*>(t.x) + row;
  constexpr int64_t kHead = Code::kZeros ? 2 * kLineBytes : kLineBytes;
  for (int64_t k = 0; k < t.k; k += t.group) {
    const int64_t count = HWY_MIN(t.group, t.k - k);
    const char* scales = weights;
    weights += kHead;
    FVec zeros[kPanels][kVecs];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        const auto* line = reinterpret_cast<const float*>(scales + kLineBytes + p * t.panel_bytes);
        zeros[p][v] = Code::kZeros ? hn::Load(d, line + v * kLanes) : hn::Zero(d);
      }
    }
    FVec c[kRows][kPanels][kVecs];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
        for (int v = 0; v < kVecs; ++v) c[r][p][v] = hn::Zero(d);
      }
    }
    for (int64_t i = 0; i < count; i += kColumns, weights += kLineBytes, x += kColumns * t.rows) {
      UVec words[kPanels][kVecs];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const auto* line = reinterpret_cast<const uint32_t*>(weights + p * t.panel_bytes);
#pragma GCC unroll 16
        for (int v = 0; v < kVecs; ++v) words[p][v] = hn::Load(du, line + v * kLanes);
      }
      add_pair<Code, kRows, kPanels, 0>(words, zeros, x, t.rows, c);
      add_pair<Code, kRows, kPanels, 1>(words, zeros, x, t.rows, c);
      if constexpr (Code::kPairs == 4) {
        add_pair<Code, kRows, kPanels, 2>(words, zeros, x, t.rows, c);
        add_pair<Code, kRows, kPanels, 3>(words, zeros, x, t.rows, c);
      }
    }
    // The last group's codes end before its bytes do.
    weights = scales + kHead + kPanelWidth * t.group / (Code::kPairs == 4 ? 2 : 1);
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        const auto scale = hn::Load(d, reinterpret_cast<const float*>(scales + p * t.panel_bytes) + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          float* sums = t.sums + ((panel + p) * t.rows + row + r) * kPanelWidth + v * kLanes;
          const auto before = t.first && k == 0 ? hn::Zero(d) : hn::Load(d, sums);
          hn::Store(hn::MulAdd(c[r][p][v], scale, before), d, sums);
        }
      }
    }
  }
}

template <typename Code, int kRows>
void multiply_rows(const TileProduct& t, int64_t row) {
  constexpr int kPanels = panels_in_flight(kRows);
  int64_t panel = 0;
  for (; panel + kPanels <= t.panels; panel += kPanels) multiply<Code, kRows, kPanels>(t, row, panel);
  for (; panel < t.panels; ++panel) multiply<Code, kRows, 1>(t, row, panel);
}

template <typename Code>
void multiply_tile(const TileProduct& t) {
  const int64_t parts = (t.rows + kMaxRows - 1) / kMaxRows;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t row = t.rows * i / parts;
    switch (t.rows * (i + 1) / parts - row) {
      case 1:
        multiply_rows<Code, 1>(t, row);
        break;
      case 2:
        multiply_rows<Code, HWY_MIN(2, kMaxRows)>(t, row);
        break;
      case 3:
        multiply_rows<Code, HWY_MIN(3, kMaxRows)>(t, row);
        break;
      case 4:
        multiply_rows<Code, HWY_MIN(4, kMaxRows)>(t, row);
        break;
      case 5:
        multiply_rows<Code, HWY_MIN(5, kMaxRows)>(t, row);
        break;
      case 6:
        multiply_rows<Code, HWY_MIN(6, kMaxRows)>(t, row);
        break;
      case 7:
        multiply_rows<Code, HWY_MIN(7, kMaxRows)>(t, row);
        break;
      default:
        multiply_rows<Code, kMaxRows>(t, row);
        break;
    }
  }
}

void multiply_fp8(const TileProduct& t) {
  multiply_tile<Fp8>(t);
}
void multiply_int4(const TileProduct& t) {
  multiply_tile<Int4<false>>(t);
}
void multiply_uint4(const TileProduct& t) {
  multiply_tile<Int4<true>>(t);
}
void multiply_fp4(const TileProduct& t) {
  multiply_tile<Fp4>(t);
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {

HWY_EXPORT(multiply_fp8);
HWY_EXPORT(multiply_int4);
HWY_EXPORT(multiply_uint4);
HWY_EXPORT(multiply_fp4);

void multiply_tile_fp8(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_fp8)(product);
}
void multiply_tile_int4(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_int4)(product);
}
void multiply_tile_uint4(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_uint4)(product);
}
void multiply_tile_fp4(const TileProduct& product) {
  HWY_DYNAMIC_DISPATCH(multiply_fp4)(product);
}

}  // namespace volley::ops
#endif
