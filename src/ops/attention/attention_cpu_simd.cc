// Attention kernels for every instruction set that Highway knows: bf16 tiles are widened to fp32 as they are read.
//
// Both products are the same register tile: R query rows by J vectors, one fused step for each summed index, ascending.
// R and J change which sums are in flight together, never the order within one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/attention_cpu.h"

// Register tiles are arrays of vectors, which sizeless vectors cannot be; such machines have a fixed-size target too.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention_cpu_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {
namespace {

using DF = hn::CappedTag<float, kKvTile>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kTileVectors = kKvTile / kLanes;

// Six rows by two vectors fill 12 of the 16 registers of AVX2, by four 24 of 32.
constexpr int kRows = 6;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif

template <int R, int J>
struct Sums {
  VF v[R][J];

  HWY_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) v[r][j] = hn::Zero(DF());
    }
  }

  HWY_INLINE void add(const VF (&b)[J], const float* const (&a)[R], int i) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF x = hn::Set(DF(), a[r][i]);
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) v[r][j] = hn::MulAdd(x, b[j], v[r][j]);
    }
  }

  HWY_INLINE void store(float* to, int stride) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) hn::StoreU(v[r][j], DF(), to + r * stride + j * kLanes);
    }
  }

  // Adds the products of n summed indices: a[r][i] with 32-bit words of B at b[j] + i * stride bytes; two indices to a
  // word when B is bf16.
  template <bool kBF16>
  HWY_INLINE void multiply(const float* const (&a)[R], const std::byte* const (&b)[J], int n, int64_t stride) {
    const DF d;
    const DU du;
    if constexpr (!kBF16) {
      for (int i = 0; i < n; ++i) {
        VF x[J];
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) x[j] = hn::LoadU(d, reinterpret_cast<const float*>(b[j] + i * stride));
        add(x, a, i);
      }
    } else {
      for (int i = 0; i < n; i += 2) {
        VF low[J], high[J];
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
          const auto word = hn::LoadU(du, reinterpret_cast<const uint32_t*>(b[j] + i / 2 * stride));
          low[j] = hn::BitCast(d, hn::ShiftLeft<16>(word));
          high[j] = hn::BitCast(d, hn::And(word, hn::Set(du, 0xffff0000u)));
        }
        add(low, a, i);
        add(high, a, i + 1);
      }
    }
  }
};

// Calls f<R, J>(first row, first vector) over all rows and vectors. R from a short list: each is a kernel to compile,
// for every instruction set.
template <int R, typename F>
HWY_INLINE void for_vectors(int row, int n, F&& f) {
  int j = 0;
  for (; j + kVectors <= n; j += kVectors) f.template operator()<R, kVectors>(row, j);
  for (; j < n; ++j) f.template operator()<R, 1>(row, j);
}

template <typename F>
HWY_INLINE void for_rows_and_vectors(int rows, int n, F&& f) {
  int row = 0;
  for (; row + kRows <= rows; row += kRows) for_vectors<kRows>(row, n, f);
  for (; row + 3 <= rows; row += 3) for_vectors<3>(row, n, f);
  for (; row < rows; ++row) for_vectors<1>(row, n, f);
}

// q: [rows][head_dim] fp32.
template <bool kBF16>
void compute_scores(const ChunkJob& job, const float* const* q, int stride) {
  const int n = job.n_tiles * kTileVectors;
  for_rows_and_vectors(job.rows, n, [&]<int R, int J>(int row, int vector) HWY_ATTR {
    const float* a[R];
    const std::byte* b[J];
    for (int r = 0; r < R; ++r) a[r] = q[row + r];
    for (int j = 0; j < J; ++j) {
      b[j] = job.k_tiles[(vector + j) / kTileVectors] + (vector + j) % kTileVectors * kLanes * 4;
    }
    Sums<R, J> sums;
    sums.clear();
    sums.template multiply<kBF16>(a, b, job.head_dim, kKvTile * 4);
    sums.store(job.scores + row * stride + vector * kLanes, stride);
  });
}

// 2^x for x <= 0 or so, within 2 units in the last place; 0 below -126. A polynomial of 2^f on [-1/2, 1/2] with its
// constant fixed to 1 (2^0 is exact), relative error 4e-9.
HWY_INLINE VF exp2_of(VF x) {
  const DF d;
  const DI di;
  const VF n = hn::Round(x);
  const VF f = hn::Sub(x, n);
  VF y = hn::Set(d, 1.546973197e-04f);
  y = hn::MulAdd(y, f, hn::Set(d, 1.341000097e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 9.618030783e-03f));
  y = hn::MulAdd(y, f, hn::Set(d, 5.550297314e-02f));
  y = hn::MulAdd(y, f, hn::Set(d, 2.402265108e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 6.931472254e-01f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(y, power));
}

HWY_INLINE VF hide(const ChunkJob& job, int row, int32_t position, VF s) {
  const DF d;
  const DI di;
  const auto at = hn::Iota(di, position);
  const auto seen = hn::AndNot(hn::Lt(at, hn::Set(di, job.begin[row])), hn::Lt(at, hn::Set(di, job.end[row])));
  return hn::IfThenElse(hn::RebindMask(d, seen), s, hn::Set(d, -std::numeric_limits<float>::infinity()));
}

// Turns a row's scores into probabilities, in place; rounded to bf16 where V is.
template <bool kBF16>
void softmax_row(const ChunkJob& job, int row, int stride) {
  const DF d;
  float* scores = job.scores + row * stride;
  float* partial = job.partials + row * partial_floats(job.value_dim);
  const TileRange range = visible_tiles(job, row);
  VF max = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int t = range.begin; t < range.end; ++t) {
    const bool edge = t == range.begin || t + 1 == range.end;
    for (int i = t * kKvTile; i < (t + 1) * kKvTile; i += kLanes) {
      VF s = hn::LoadU(d, scores + i);
      if (edge) {
        s = hide(job, row, job.position + i, s);
        hn::StoreU(s, d, scores + i);
      }
      max = hn::Max(max, s);
    }
  }
  const float top = hn::GetLane(hn::MaxOfLanes(d, max)) * job.scale_log2;
  const VF scale = hn::Set(d, job.scale_log2);
  const VF shift = hn::Set(d, top);
  VF sum = hn::Zero(d);
  std::fill(scores, scores + range.begin * kKvTile, 0.0f);
  for (int i = range.begin * kKvTile; i < range.end * kKvTile; i += kLanes) {
    VF p = exp2_of(hn::MulSub(hn::LoadU(d, scores + i), scale, shift));
    if constexpr (kBF16) p = hn::BitCast(d, bf16_words(d, p));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, scores + i);
  }
  std::fill(scores + range.end * kKvTile, scores + job.n_tiles * kKvTile, 0.0f);
  partial[0] = top;
  partial[1] = hn::GetLane(hn::SumOfLanes(d, sum));
}

// Tiles that any of the rows sees; a row's probabilities are zero in tiles that only others see.
TileRange tiles_of_rows(const ChunkJob& job, int first, int rows) {
  TileRange all{job.n_tiles, 0};
  for (int r = first; r < first + rows; ++r) {
    const TileRange range = visible_tiles(job, r);
    if (range.begin == range.end) continue;
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  return all;
}

template <bool kBF16>
void compute_values(const ChunkJob& job, int stride) {
  const int out_stride = partial_floats(job.value_dim);
  constexpr int kRowsOfWords = kBF16 ? kKvTile / 2 : kKvTile;
  static_assert(kRowsOfWords * (kBF16 ? 2 : 1) == kKvTile);
  for_rows_and_vectors(job.rows, job.value_dim / kLanes, [&]<int R, int J>(int row, int vector) HWY_ATTR {
    const TileRange tiles = tiles_of_rows(job, row, R);
    Sums<R, J> sums;
    sums.clear();
    for (int t = tiles.begin; t < tiles.end; ++t) {
      const float* a[R];
      const std::byte* b[J];
      for (int r = 0; r < R; ++r) a[r] = job.scores + (row + r) * stride + t * kKvTile;
      for (int j = 0; j < J; ++j) b[j] = job.v_tiles[t] + (vector + j) * kLanes * 4;
      sums.template multiply<kBF16>(a, b, kKvTile, job.value_dim * 4);
    }
    sums.store(job.partials + row * out_stride + kPartialHeader + vector * kLanes, out_stride);
  });
}

template <bool kBF16>
HWY_INLINE void run_chunk(const ChunkJob& job) {
  const int stride = score_stride(job.n_tiles);
  HWY_ALIGN float widened[kBF16 ? kJobRows * kMaxKeyDim : 1];
  const float* q[kJobRows];
  for (int r = 0; r < job.rows; ++r) {
    if constexpr (kBF16) {
      const auto* from = reinterpret_cast<const BFloat16*>(job.q[r]);
      float* to = widened + r * job.head_dim;
      for (int i = 0; i < job.head_dim; ++i) to[i] = to_float(from[i]);
      q[r] = to;
    } else {
      q[r] = reinterpret_cast<const float*>(job.q[r]);
    }
  }
  compute_scores<kBF16>(job, q, stride);
  for (int row = 0; row < job.rows; ++row) softmax_row<kBF16>(job, row, stride);
  compute_values<kBF16>(job, stride);
}

}  // namespace

void chunk_bf16(const ChunkJob& job) {
  run_chunk<true>(job);
}
void chunk_f32(const ChunkJob& job) {
  run_chunk<false>(job);
}

void fold(float* HWY_RESTRICT running, const float* HWY_RESTRICT chunk, int value_dim) {
  const DF d;
  const float top = std::max(running[0], chunk[0]);
  const VF before = exp2_of(hn::Set(d, running[0] - top));
  const VF after = exp2_of(hn::Set(d, chunk[0] - top));
  running[0] = top;
  running[1] = std::fma(running[1], hn::GetLane(before), chunk[1] * hn::GetLane(after));
  for (int i = kPartialHeader; i < partial_floats(value_dim); i += kLanes) {
    const VF product = hn::Mul(hn::LoadU(d, chunk + i), after);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, running + i), before, product), d, running + i);
  }
}

// Adding +0 makes a zero positive: a row's zero must not show by its sign whether invisible positions (each adding +0
// or -0) shared its tiles.
void finish_f32(const float* HWY_RESTRICT running, float scale, void* HWY_RESTRICT out, int value_dim) {
  const DF d;
  const VF inverse = hn::Set(d, scale / running[1]);
  float* to = static_cast<float*>(out);
  for (int i = 0; i < value_dim; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, running + kPartialHeader + i), inverse, hn::Zero(d)), d, to + i);
  }
}

void finish_bf16(const float* HWY_RESTRICT running, float scale, void* HWY_RESTRICT out, int value_dim) {
  const DF d;
  const VF inverse = hn::Set(d, scale / running[1]);
  uint16_t* to = static_cast<uint16_t*>(out);
  for (int i = 0; i < value_dim; i += kLanes) {
    store_bf16(d, hn::MulAdd(hn::LoadU(d, running + kPartialHeader + i), inverse, hn::Zero(d)), to + i);
  }
}

// An exponent of all ones is an infinity or NaN.
bool all_finite_bf16(const std::byte* tile, int64_t bytes) {
  const DI d;
  auto high = hn::Zero(d);
  auto low = hn::Zero(d);
  for (int64_t i = 0; i < bytes; i += kLanes * 4) {
    const auto words = hn::LoadU(d, reinterpret_cast<const int32_t*>(tile + i));
    high = hn::Max(high, hn::And(words, hn::Set(d, 0x7f800000)));
    low = hn::Max(low, hn::And(words, hn::Set(d, 0x7f80)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, high)) != 0x7f800000 && hn::GetLane(hn::MaxOfLanes(d, low)) != 0x7f80;
}

bool all_finite_f32(const std::byte* tile, int64_t bytes) {
  const DI d;
  auto high = hn::Zero(d);
  for (int64_t i = 0; i < bytes; i += kLanes * 4) {
    const auto words = hn::LoadU(d, reinterpret_cast<const int32_t*>(tile + i));
    high = hn::Max(high, hn::And(words, hn::Set(d, 0x7f800000)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, high)) != 0x7f800000;
}

// The exponent moves from a bias of 7 to one of 127. The codes below 8 are multiples of 2^-9, whose first bit decides.
void widen_e4m3(const std::byte* HWY_RESTRICT codes, int64_t n, std::byte* HWY_RESTRICT to) {
  const hn::CappedTag<uint16_t, 32> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto code = hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(codes + i)));
    const auto size = hn::And(code, hn::Set(d, 0x7f));
    auto value = hn::Add(hn::ShiftLeft<4>(size), hn::Set(d, 0x3c00));
    value = hn::IfThenElse(hn::Lt(size, hn::Set(d, 8)), hn::Add(hn::ShiftLeft<5>(size), hn::Set(d, 0x3b80)), value);
    value = hn::IfThenElse(hn::Lt(size, hn::Set(d, 4)), hn::Add(hn::ShiftLeft<6>(size), hn::Set(d, 0x3b00)), value);
    value = hn::IfThenElse(hn::Lt(size, hn::Set(d, 2)), hn::And(hn::Sub(hn::Zero(d), size), hn::Set(d, 0x3b00)), value);
    value = hn::IfThenElse(hn::Eq(size, hn::Set(d, 0x7f)), hn::Set(d, 0x7fc0), value);
    hn::StoreU(hn::Or(value, hn::ShiftLeft<8>(hn::Xor(code, size))), d, reinterpret_cast<uint16_t*>(to + 2 * i));
  }
}

bool is_avx512() {
  return HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL;
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {
namespace {
HWY_EXPORT(chunk_bf16);
HWY_EXPORT(chunk_f32);
HWY_EXPORT(fold);
HWY_EXPORT(finish_bf16);
HWY_EXPORT(finish_f32);
HWY_EXPORT(all_finite_bf16);
HWY_EXPORT(all_finite_f32);
HWY_EXPORT(widen_e4m3);
HWY_EXPORT(is_avx512);
}  // namespace

ChunkKernels attention_kernels_portable(DType dtype) {
  if (dtype == DType::kBF16) {
    return {HWY_DYNAMIC_DISPATCH(chunk_bf16),      HWY_DYNAMIC_DISPATCH(fold),       HWY_DYNAMIC_DISPATCH(finish_bf16),
            HWY_DYNAMIC_DISPATCH(all_finite_bf16), HWY_DYNAMIC_DISPATCH(widen_e4m3), HWY_DYNAMIC_DISPATCH(is_avx512)()};
  }
  return {HWY_DYNAMIC_DISPATCH(chunk_f32),
          HWY_DYNAMIC_DISPATCH(fold),
          HWY_DYNAMIC_DISPATCH(finish_f32),
          HWY_DYNAMIC_DISPATCH(all_finite_f32),
          nullptr,
          HWY_DYNAMIC_DISPATCH(is_avx512)()};
}

}  // namespace volley::ops
#endif
