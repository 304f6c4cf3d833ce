// Products of fp32 rows with weights that are codes, on any CPU: codes become fp32 in registers. Compiled once per
// instruction set.
#include <bit>

#include "ops/linear/cpu/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/cpu/linear_codes_tile_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/linear/cpu/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::RebindToUnsigned<F32>;
using UVec = hn::Vec<U32>;

// Codes of kBits bits, a float of few bits each; of its exponent and mantissa, fp32 has kKept.
template <int kBits, int kDown, uint32_t kKept>
struct Floats {
  static constexpr int kLines = 1, kPairs = 16 / kBits;  // codes of half a word
  static constexpr bool kOffsets = false, kScaled = false;
  // Value of code kCode in the lower half of each word (of kLines lines). Exponent and mantissa, moved to where fp32
  // has them, are 2^kDown times too small; so are those of subnormal codes.
  template <int kCode>
  static HWY_INLINE FVec value(const UVec (&half)[1], FVec, FVec) {
    const F32 d;
    const hn::RebindToSigned<F32> di;
    constexpr int kRight = kBits == 8 ? 4 : 6;  // additional exponent bits of fp32
    constexpr float kUp = std::bit_cast<float>((127 + kDown) << 23);
    const auto moved = hn::ShiftRight<kRight>(hn::BitCast(di, hn::ShiftLeft<32 - kBits*(kCode + 1)>(half[0])));
    const auto kept = hn::And(moved, hn::Set(di, static_cast<int32_t>(kKept)));
    return hn::Mul(hn::BitCast(d, kept), hn::Set(d, kUp));
  }
};
using Fp8 = Floats<8, 120, 0x87f00000u>;
using Fp4 = Floats<4, 126, 0x81c00000u>;

// Reads int4 codes less their zero point.
template <bool kZeros>
struct Int4 {
  static constexpr int kLines = 1, kPairs = 4;
  static constexpr bool kOffsets = kZeros, kScaled = false;
  // Bits 4 * kCode of the mantissa of 2^(23 - 4 * kCode) count as what they are.
  template <int kCode>
  static HWY_INLINE FVec value(const UVec (&half)[1], FVec zero, FVec) {
    const F32 d;
    const U32 du;
    constexpr float kOne = static_cast<float>(1 << (23 - 4 * kCode));
    const auto code = hn::And(half[0], hn::Set(du, 0xfu << (4 * kCode)));
    const auto from = kZeros ? hn::Add(hn::Set(d, kOne), zero) : hn::Set(d, kOne + 8);  // exact
    return hn::Sub(hn::BitCast(d, hn::Or(code, hn::BitCast(du, hn::Set(d, kOne)))), from);
  }
};

struct Int8 {
  static constexpr int kLines = 1, kPairs = 2;
  template <int kCode>
  static HWY_INLINE FVec value(const UVec (&half)[1], FVec, FVec) {
    const F32 d;
    const hn::RebindToSigned<F32> di;
    return hn::ConvertTo(d, hn::ShiftRight<24>(hn::BitCast(di, hn::ShiftLeft<24 - 8 * kCode>(half[0]))));
  }
};

struct Int6 {
  static constexpr int kLines = 3, kPairs = 8;
  template <int kCode>
  static HWY_INLINE FVec value(const UVec (&half)[3], FVec, FVec) {
    const F32 d;
    const U32 du;
    constexpr int kLeft = HWY_MAX(4 - 2 * kCode, 0), kRight = HWY_MAX(2 * kCode - 4, 0);
    constexpr float kOne = 1 << 23;  // whose last bits count as what they are
    const auto low = hn::And(hn::ShiftRight<kCode % 4 * 4>(half[kCode / 4]), hn::Set(du, 0xfu));
    const auto high = hn::And(hn::ShiftRight<kRight>(hn::ShiftLeft<kLeft>(half[2])), hn::Set(du, 0x30u));
    const auto code = hn::Or(hn::Or(low, high), hn::BitCast(du, hn::Set(d, kOne)));
    return hn::Sub(hn::BitCast(d, code), hn::Set(d, kOne + 32));
  }
};

// Codes times scale plus minimum: the product is exact, as codes and scales have few bits, and the sum is rounded once.
template <typename Codes, bool kMinimums>
struct Scaled {
  static constexpr int kLines = Codes::kLines, kPairs = Codes::kPairs;
  static constexpr bool kOffsets = kMinimums, kScaled = true;
  template <int kCode>
  static HWY_INLINE FVec value(const UVec (&half)[kLines], FVec minimum, FVec scale) {
    const auto code = Codes::template value<kCode>(half, hn::Zero(F32()), scale);  // from 0, if there is a zero point
    return kMinimums ? hn::MulAdd(code, scale, minimum) : hn::Mul(code, scale);
  }
};

// Rows that go through a panel together: their sums, and what widening takes, stay in registers.
constexpr int kMaxRows = HWY_MAX(1, HWY_MIN((HWY_MAX_BYTES >= 64 ? 16 : 8) / kVecs, 8));
// One row waits for its own sums; two panels at a time wait less.
constexpr int panels_in_flight(int rows) {
  return rows * 2 * kVecs <= (HWY_MAX_BYTES >= 64 ? 16 : 8) ? 2 : 1;
}

// Values of a group's head, from the one of that number on.
HWY_INLINE FVec head_values(const char* head, bool halves, int64_t first) {
  const F32 d;
  const hn::Rebind<hwy::float16_t, F32> d16;
  if (!halves) return hn::Load(d, reinterpret_cast<const float*>(head) + first);
  const auto value = hn::PromoteTo(d, hn::Load(d16, reinterpret_cast<const hwy::float16_t*>(head) + first));
  // Without F16C, Highway makes numbers from 2^16 on of infinities and NaN.
  const auto special = hn::Or(value, hn::Set(d, std::bit_cast<float>(0x7f800000u)));
  return hn::IfThenElse(hn::Ge(hn::Abs(value), hn::Set(d, 65536.0f)), special, value);
}

template <typename Code, int kRows, int kPanels, int kCode>
HWY_INLINE void add_pair(const UVec (&words)[kPanels][kVecs][Code::kLines], const FVec (&offsets)[kPanels][kVecs],
                         const FVec (&scales)[kPanels][kVecs], const float* x, int64_t rows,
                         FVec (&c)[kRows][kPanels][kVecs]) {
  const F32 d;
#pragma GCC unroll 16
  for (int odd = 0; odd < 2; ++odd) {
    const float* column = x + (2 * kCode + odd) * rows;
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        UVec half[Code::kLines];
#pragma GCC unroll 16
        for (int l = 0; l < Code::kLines; ++l) {
          half[l] = odd == 0 ? words[p][v][l] : hn::ShiftRight<16>(words[p][v][l]);
        }
        const auto value = Code::template value<kCode>(half, offsets[p][v], scales[p][v]);
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
  constexpr int64_t kColumns = 2 * Code::kPairs;  // columns in kLines lines
  const char* weights = t.weights + panel * t.panel_bytes;
  const float* x = static_cast<const float*>(t.x) + row;
  const bool halves = Code::kScaled && Code::kOffsets && t.halves;
  const int64_t head_bytes = Code::kOffsets && !halves ? 2 * kLineBytes : kLineBytes;
  // The sums so far; or of one group, before it is scaled.
  FVec c[kRows][kPanels][kVecs];
  const auto sums = [&](int r, int p, int v) {
    return t.sums + ((panel + p) * t.rows + row + r) * kPanelWidth + v * kLanes;
  };
  if constexpr (Code::kScaled) {
    for_sums<kRows, kPanels>(
        [&](int r, int p, int v) { c[r][p][v] = t.first ? hn::Zero(d) : hn::Load(d, sums(r, p, v)); });
  }
  for (int64_t k = 0; k < t.k; k += t.group) {
    const int64_t count = HWY_MIN(t.group, t.k - k);
    const char* head = weights;
    weights += head_bytes;
    FVec offsets[kPanels][kVecs], scales[kPanels][kVecs];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        const char* lines = head + p * t.panel_bytes;
        offsets[p][v] = Code::kOffsets ? head_values(lines, halves, kPanelWidth + v * kLanes) : hn::Zero(d);
        scales[p][v] = Code::kScaled ? head_values(lines, halves, v * kLanes) : hn::Zero(d);
      }
    }
    if constexpr (!Code::kScaled) {
      for_sums<kRows, kPanels>([&](int r, int p, int v) { c[r][p][v] = hn::Zero(d); });
    }
    for (int64_t i = 0; i < count; i += kColumns, weights += Code::kLines * kLineBytes, x += kColumns * t.rows) {
      UVec words[kPanels][kVecs][Code::kLines];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const auto* line = reinterpret_cast<const uint32_t*>(weights + p * t.panel_bytes);
#pragma GCC unroll 16
        for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 16
          for (int l = 0; l < Code::kLines; ++l) {
            words[p][v][l] = hn::Load(du, line + l * kPanelWidth + v * kLanes);
          }
        }
      }
      add_pair<Code, kRows, kPanels, 0>(words, offsets, scales, x, t.rows, c);
      add_pair<Code, kRows, kPanels, 1>(words, offsets, scales, x, t.rows, c);
      if constexpr (Code::kPairs > 2) {
        add_pair<Code, kRows, kPanels, 2>(words, offsets, scales, x, t.rows, c);
        add_pair<Code, kRows, kPanels, 3>(words, offsets, scales, x, t.rows, c);
      }
      if constexpr (Code::kPairs > 4) {
        add_pair<Code, kRows, kPanels, 4>(words, offsets, scales, x, t.rows, c);
        add_pair<Code, kRows, kPanels, 5>(words, offsets, scales, x, t.rows, c);
        add_pair<Code, kRows, kPanels, 6>(words, offsets, scales, x, t.rows, c);
        add_pair<Code, kRows, kPanels, 7>(words, offsets, scales, x, t.rows, c);
      }
    }
    // The last group's codes end before its bytes do.
    weights = head + head_bytes + t.group / kColumns * Code::kLines * kLineBytes;
    if constexpr (Code::kScaled) continue;
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        const auto scale = hn::Load(d, reinterpret_cast<const float*>(head + p * t.panel_bytes) + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const auto before = t.first && k == 0 ? hn::Zero(d) : hn::Load(d, sums(r, p, v));
          hn::Store(hn::MulAdd(c[r][p][v], scale, before), d, sums(r, p, v));
        }
      }
    }
  }
  if constexpr (Code::kScaled) {
    for_sums<kRows, kPanels>([&](int r, int p, int v) { hn::Store(c[r][p][v], d, sums(r, p, v)); });
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
  for_row_parts<kMaxRows>(t.rows, [&](auto rows, int64_t row) { multiply_rows<Code, decltype(rows)::value>(t, row); });
}

TileMultiply code_multiply(const WeightFormat& format) {
  switch (format.code) {
    case DType::kI4:
      if (format.minimums) return multiply_tile<Scaled<Int4<true>, true>>;
      return format.zeros ? multiply_tile<Int4<true>> : multiply_tile<Int4<false>>;
    case DType::kI6:
      return format.minimums ? multiply_tile<Scaled<Int6, true>> : multiply_tile<Scaled<Int6, false>>;
    case DType::kI8:
      return format.minimums ? multiply_tile<Scaled<Int8, true>> : multiply_tile<Scaled<Int8, false>>;
    case DType::kF4E2M1:
      return multiply_tile<Fp4>;
    default:
      return multiply_tile<Fp8>;
  }
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {

HWY_EXPORT(code_multiply);

TileMultiply multiply_codes(const WeightFormat& format) {
  return HWY_DYNAMIC_DISPATCH(code_multiply)(format);
}

}  // namespace volley::ops
#endif
