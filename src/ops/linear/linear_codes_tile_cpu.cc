// Products of fp32 rows with weights that are codes, on any CPU: a group of a panel is widened to fp32 and multiplied
// by all rows of the tile. Compiled once per instruction set.
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

// `word` holds an e4m3 code in its lowest byte. Its exponent and mantissa, moved to where fp32 has them, are 2^120
// times too small; so are those of subnormal codes.
struct Fp8 {
  static constexpr int kBits = 8, kPairs = 2;  // of a code; pairs of codes in a word
  static constexpr int64_t kGroup = kFp8Weights.group_k;
  static HWY_INLINE FVec value(UVec word) {
    const F32 d;
    const U32 du;
    const auto magnitude = hn::BitCast(d, hn::ShiftLeft<20>(hn::And(word, hn::Set(du, 0x7f))));
    const auto sign = hn::BitCast(d, hn::ShiftLeft<24>(hn::And(word, hn::Set(du, 0x80))));
    return hn::Or(hn::Mul(magnitude, hn::Set(d, 0x1p120f)), sign);
  }
};

struct Int4 {
  static constexpr int kBits = 4, kPairs = 4;
  static constexpr int64_t kGroup = kInt4Weights.group_k;
  static HWY_INLINE FVec value(UVec word) {
    const F32 d;
    const hn::RebindToSigned<F32> di;
    const auto code = hn::BitCast(di, hn::And(word, hn::Set(U32(), 0xf)));
    return hn::ConvertTo(d, hn::Sub(code, hn::Set(di, 8)));
  }
};

// [kGroup][16] floats.
template <typename Code>
void widen(const char* group, float* weights) {
  const F32 d;
  const U32 du;
  constexpr int64_t kLoad = 2 * Code::kPairs;  // columns of 64 bytes
  for (int64_t lane = 0; lane < kPanelWidth; lane += kLanes) {
    const auto scale = hn::Load(d, reinterpret_cast<const float*>(group) + lane);
    for (int64_t i = 0; i < Code::kGroup; i += kLoad) {
      const char* line = group + kLineBytes + i / kLoad * kLineBytes;
      auto even = hn::Load(du, reinterpret_cast<const uint32_t*>(line) + lane);
      auto odd = hn::ShiftRight<16>(even);
      for (int64_t j = 0; j < Code::kPairs; ++j) {
        float* to = weights + (i + 2 * j) * kPanelWidth + lane;
        hn::Store(hn::Mul(Code::value(even), scale), d, to);
        hn::Store(hn::Mul(Code::value(odd), scale), d, to + kPanelWidth);
        even = hn::ShiftRight<Code::kBits>(even);
        odd = hn::ShiftRight<Code::kBits>(odd);
      }
    }
  }
}

void widen_fp8(const char* group, float* weights) {
  widen<Fp8>(group, weights);
}
void widen_int4(const char* group, float* weights) {
  widen<Int4>(group, weights);
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {
namespace {

HWY_EXPORT(widen_fp8);
HWY_EXPORT(widen_int4);

template <typename Widen>
void multiply_tile(const TileProduct& t, const WeightFormat& format, const Widen& widen) {
  alignas(64) float weights[kMostGroup * kPanelWidth];
  const int64_t group_k = format.group_k;
  for (int64_t p = 0; p < t.panels; ++p) {
    const char* group = t.weights + p * t.panel_bytes;
    for (int64_t k = 0; k < t.k; k += group_k, group += linear_group_bytes(format)) {
      widen(group, weights);
      const char* widened = reinterpret_cast<const char*>(weights);
      multiply_tile_f32({.x = static_cast<const float*>(t.x) + k * t.rows,
                         .rows = t.rows,
                         .k = group_k < t.k - k ? group_k : t.k - k,
                         .weights = widened,
                         .panel_bytes = 0,
                         .panels = 1,
                         .next = widened,
                         .sums = t.sums + p * t.rows * kPanelWidth,
                         .first = t.first && k == 0});
    }
  }
}

}  // namespace

void multiply_tile_fp8(const TileProduct& product) {
  multiply_tile(product, kFp8Weights, HWY_DYNAMIC_DISPATCH(widen_fp8));
}
void multiply_tile_int4(const TileProduct& product) {
  multiply_tile(product, kInt4Weights, HWY_DYNAMIC_DISPATCH(widen_int4));
}

}  // namespace volley::ops
#endif
