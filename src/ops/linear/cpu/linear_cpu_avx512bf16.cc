// Products of bf16 rows with bf16 weights, by the bf16 dot product of AVX-512. The rules at the top of
// linear_avx512bf16-inl.h hold here.
#include "ops/linear/cpu/linear_cpu.h"

#if defined(__x86_64__)
#include "ops/linear/cpu/linear_avx512bf16-inl.h"

namespace volley::ops {
namespace {

// Four pairs, again and again over a register; and one of them in all places.
inline __m512i four_pairs(const uint32_t* x) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
inline __m512i nth_of_four(__m512i pairs, int n) {
  switch (n) {
    case 0:
      return _mm512_shuffle_epi32(pairs, _MM_PERM_AAAA);
    case 1:
      return _mm512_shuffle_epi32(pairs, _MM_PERM_BBBB);
    case 2:
      return _mm512_shuffle_epi32(pairs, _MM_PERM_CCCC);
    default:
      return _mm512_shuffle_epi32(pairs, _MM_PERM_DDDD);
  }
}

struct Values {
  template <int kRows, int kPanels>
  static void multiply(const TileProduct& t, const char* weights, float* sums, const char* next) {
    __m512 c[kRows][kPanels];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        c[r][p] = t.first ? _mm512_setzero_ps() : _mm512_load_ps(sums + (p * kRows + r) * kPanelWidth);
      }
    }
    const uint32_t* x = static_cast<const uint32_t*>(t.x);
    const int64_t panel_bytes = t.panel_bytes;
    const int64_t bytes = (t.k + 1) / 2 * kLineBytes;
    for (int64_t line = 0; line < bytes; line += kLineBytes) {
      // 16 rows of 1 panel ask for more loads (2 per cycle) than products: four rows share one, 4 % in all.
      const __m512i last = kRows == 16 ? four_pairs(x + 12) : _mm512_setzero_si512();
      __m512i w[kPanels];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        w[p] = _mm512_load_si512(weights + p * panel_bytes + line);
        if constexpr (kRows >= kPrefetchRows) _mm_prefetch(next + p * panel_bytes + line, _MM_HINT_T0);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair =
            kRows == 16 && r >= 12 ? nth_of_four(last, r - 12) : _mm512_set1_epi32(static_cast<int>(x[r]));
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) {
          c[r][p] = _mm512_dpbf16_ps(c[r][p], reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(w[p]));
        }
      }
      x += kRows;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) _mm512_store_ps(sums + (p * kRows + r) * kPanelWidth, c[r][p]);
    }
  }
};

// m[i][j] <-> m[j][i] of 16 x 16 words: within lanes of 4 words first, then the lanes.
void transpose(__m512i m[16]) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(m[i], m[i + 1]), b = _mm512_unpackhi_epi32(m[i], m[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(m[i + 2], m[i + 3]), d = _mm512_unpackhi_epi32(m[i + 2], m[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    m[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    m[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    m[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    m[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

__mmask32 first_lanes(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
}

// Up to 32 k of up to 16 rows.
void pack_some(const BFloat16* x, int64_t row_stride, int64_t rows, int64_t k, uint32_t* tile) {
  const int64_t pairs = k < 32 ? (k + 1) / 2 : 16;
  const __mmask32 k_mask = first_lanes(k);
  if (rows == 1) {
    const __m512i row = _mm512_maskz_loadu_epi16(k_mask, x);
    return _mm512_mask_storeu_epi32(tile, static_cast<__mmask16>(first_lanes(pairs)), row);
  }
  __m512i m[16] = {};
  for (int64_t r = 0; r < rows; ++r) m[r] = _mm512_maskz_loadu_epi16(k_mask, x + r * row_stride);
  transpose(m);
  const __mmask16 row_mask = static_cast<__mmask16>(first_lanes(rows));
  for (int64_t i = 0; i < pairs; ++i) _mm512_mask_storeu_epi32(tile + i * rows, row_mask, m[i]);
}

}  // namespace

void multiply_tile_avx512bf16(const TileProduct& product) {
  multiply_tile<Values>(product);
}

void pack_tile_avx512bf16(const BFloat16* x, int64_t row_stride, int64_t rows, int64_t k, uint32_t* tile) {
  const int64_t pairs = (k + 1) / 2;
  int64_t pair = 0;
  if (rows == 16) {
    for (; 2 * pair + 32 <= k; pair += 16) {
      __m512i m[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) m[r] = _mm512_loadu_si512(x + r * row_stride + 2 * pair);
      transpose(m);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + (pair + i) * 16, m[i]);
    }
  }
  for (; pair < pairs; pair += 16) pack_some(x + 2 * pair, row_stride, rows, k - 2 * pair, tile + pair * rows);
}

}  // namespace volley::ops

#else  // cpu_has_avx512_bf16() is false there

namespace volley::ops {

void multiply_tile_avx512bf16(const TileProduct&) {
  VOLLEY_CHECK_MSG(false, "AVX-512 BF16 is for x86-64");
}
void pack_tile_avx512bf16(const BFloat16*, int64_t, int64_t, int64_t, uint32_t*) {
  VOLLEY_CHECK_MSG(false, "AVX-512 BF16 is for x86-64");
}

}  // namespace volley::ops

#endif
