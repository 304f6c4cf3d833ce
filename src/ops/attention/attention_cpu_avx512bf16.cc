// Attention over bf16 tiles with the bf16 dot product (vdpbf16ps), which Highway 1.0.3 does not have. Compiled with the
// flags of AVX-512 and AVX512_BF16; reached through attention_cpu.cc when the CPU has both.
//
// Both products are the same register tile: R query rows by J vectors of 16 lanes, one fused step for each pair of the
// summed index, ascending. R and J change which sums are in flight together, never the order within one.
#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>

#include "ops/attention/attention_cpu.h"

// gcc 12 takes the "undefined" source operands of its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace volley::ops {
namespace {

inline __m512bh load_pairs(const std::byte* from) {
  return (__m512bh)_mm512_loadu_si512(from);
}
inline __m512bh broadcast_pair(const uint32_t* from) {
  return (__m512bh)_mm512_set1_epi32(static_cast<int>(*from));
}

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// With few query rows the time goes into reading K and V, which the layers in between have pushed out of the inner
// caches. Tiles of a page follow each other, so the next ones are prefetched while these are used (past a page's end
// that is useless but harmless). One row over 32k positions, 32 heads of 128, one thread of a busy Zen 5: 6.3 ms,
// without prefetching 10 ms; data that is already in the second-level cache gets 15 % slower.
constexpr int kStreamingRows = 4;
constexpr int kTilesAhead = 2;

// The sums of a register tile: R rows of J vectors.
template <int R, int J>
[[gnu::always_inline]] inline void clear(__m512 (&sum)[R][J]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) sum[r][j] = _mm512_setzero_ps();
  }
}
template <int R, int J>
[[gnu::always_inline]] inline void store(const __m512 (&sum)[R][J], float* to, int stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) _mm512_storeu_ps(to + r * stride + j * 16, sum[r][j]);
  }
}

struct ScoreTile {
  const uint32_t* const* q;         // [R] rows of head_dim / 2 pairs
  const std::byte* const* k_tiles;  // [J]
  int pairs;
  float* scores;  // scores of row 0 and the first tile
  int stride;     // floats from a row's scores to the next row's
};

template <int R, int J>
void multiply_k(const ScoreTile& tile) {
  __m512 sum[R][J];
  clear(sum);
  const std::byte* k[J];
  for (int j = 0; j < J; ++j) k[j] = tile.k_tiles[j];
  [[maybe_unused]] const int ahead = J * tile.pairs * 64;
  for (int i = 0; i < tile.pairs; ++i) {
    if constexpr (R <= kStreamingRows) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) _mm_prefetch(k[j] + ahead + i * 64, _MM_HINT_T0);
    }
    __m512bh b[J];
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) b[j] = load_pairs(k[j] + i * 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512bh a = broadcast_pair(tile.q[r] + i);
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], b[j], a);
    }
  }
  store(sum, tile.scores, tile.stride);
}

struct ValueTile {
  const float* p;  // row 0's probabilities, one 32-bit word for two positions, at the start of each row's scores
  int stride;      // floats from a row's probabilities to the next row's
  const std::byte* const* v_tiles;
  int tile_begin, tile_end;
  int value_dim;
  int first;   // element of the head
  float* out;  // row 0's output, from element `first` on
  int out_stride;
};

template <int R, int J>
void multiply_v(const ValueTile& tile) {
  __m512 sum[R][J];
  clear(sum);
  const auto* p = reinterpret_cast<const uint32_t*>(tile.p);
  for (int t = tile.tile_begin; t < tile.tile_end; ++t) {
    const std::byte* v = tile.v_tiles[t] + tile.first * 4;
    [[maybe_unused]] const int ahead = kTilesAhead * kKvTile * tile.value_dim * 2;
    for (int i = 0; i < kKvTile / 2; ++i, v += tile.value_dim * 4) {
      if constexpr (R <= kStreamingRows) {
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) _mm_prefetch(v + ahead + j * 64, _MM_HINT_T0);
      }
      __m512bh b[J];
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) b[j] = load_pairs(v + j * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512bh a = broadcast_pair(p + r * tile.stride + t * (kKvTile / 2) + i);
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], b[j], a);
      }
    }
  }
  store(sum, tile.out, tile.out_stride);
}

// The register tiles: six rows of four vectors fill 24 of 32 registers; fewer rows take more vectors at a time, or a
// single decoding row would wait for each sum's latency.
constexpr int kRows = 6;

template <int R>
constexpr int kVectors = R <= 3 ? 8 : 4;

// Calls f<R, J> for vectors [0, n), J of them at a time.
template <int R, typename F>
void for_vectors(int n, F&& f) {
  int j = 0;
  if constexpr (kVectors<R> == 8) {
    for (; j + 8 <= n; j += 8) f.template operator()<R, 8>(j);
  }
  for (; j + 4 <= n; j += 4) f.template operator()<R, 4>(j);
  if (j + 2 <= n) {
    f.template operator()<R, 2>(j);
    j += 2;
  }
  if (j < n) f.template operator()<R, 1>(j);
}

template <typename F>
void for_rows_and_vectors(int rows, int n, F&& f) {
  switch (rows) {
    case 1:
      return for_vectors<1>(n, f);
    case 2:
      return for_vectors<2>(n, f);
    case 3:
      return for_vectors<3>(n, f);
    case 4:
      return for_vectors<4>(n, f);
    case 5:
      return for_vectors<5>(n, f);
    default:
      return for_vectors<6>(n, f);
  }
}

void compute_scores(const ChunkJob& job, int first, int rows, int stride) {
  const uint32_t* q[kRows];
  for (int r = 0; r < rows; ++r) q[r] = reinterpret_cast<const uint32_t*>(job.q[first + r]);
  for_rows_and_vectors(rows, job.n_tiles, [&]<int R, int J>(int tile) {
    multiply_k<R, J>({q, job.k_tiles + tile, job.head_dim / 2, job.scores + first * stride + tile * kKvTile, stride});
  });
}

// 2^x for x <= 0 or so, within 2 units in the last place; 0 below -150. A polynomial of 2^f on [-1/2, 1/2] with its
// constant fixed to 1 (2^0 is exact), relative error 4e-9.
inline __m512 exp2_of(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // the second operand when it is NaN
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(1.546973197e-04f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.341000097e-03f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.618030783e-03f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.550297314e-02f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.402265108e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.931472254e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, n);
}

inline __mmask16 lanes_of(const ChunkJob& job, int row, int tile) {
  return static_cast<__mmask16>(visible_lanes(job.position + tile * kKvTile, job.begin[row], job.end[row]));
}

// Turns a row's scores into bf16 probabilities, in place from the start of its scores (a tile's probabilities take half
// the room of its scores, so they never overtake the reading).
void softmax_row(const ChunkJob& job, int row, int stride) {
  float* scores = job.scores + row * stride;
  auto* p = reinterpret_cast<std::byte*>(scores);
  float* partial = job.partials + row * partial_floats(job.value_dim);
  const TileRange range = visible_tiles(job, row);
  const __m512 lowest = _mm512_set1_ps(kLowest);
  __m512 max = lowest;
  for (int t = range.begin; t < range.end; ++t) {
    __m512 s = _mm512_loadu_ps(scores + t * kKvTile);
    if (t == range.begin || t + 1 == range.end) {
      s = _mm512_mask_mov_ps(lowest, lanes_of(job, row, t), s);
      _mm512_storeu_ps(scores + t * kKvTile, s);
    }
    max = _mm512_max_ps(max, s);
  }
  const float top = _mm512_reduce_max_ps(max) * job.scale_log2;
  const __m512 scale = _mm512_set1_ps(job.scale_log2);
  const __m512 shift = _mm512_set1_ps(top);
  const __m256bh ones = (__m256bh)_mm256_set1_epi16(0x3f80);
  __m256 sum = _mm256_setzero_ps();
  for (int t = 0; t < job.n_tiles; ++t) {
    __m256bh word = (__m256bh)_mm256_setzero_si256();
    if (t >= range.begin && t < range.end) {
      const __m512 s = _mm512_loadu_ps(scores + t * kKvTile);
      word = _mm512_cvtneps_pbh(exp2_of(_mm512_fmsub_ps(s, scale, shift)));
      sum = _mm256_dpbf16_ps(sum, word, ones);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + t * kKvTile * 2), (__m256i)word);
  }
  partial[0] = top;
  // Half as many lanes three times over: a fixed tree.
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  partial[1] = _mm_cvtss_f32(half) + _mm_cvtss_f32(_mm_movehdup_ps(half));
}

void compute_values(const ChunkJob& job, int first, int rows, int stride) {
  TileRange all{job.n_tiles, 0};
  for (int r = first; r < first + rows; ++r) {
    const TileRange range = visible_tiles(job, r);
    if (range.begin == range.end) continue;
    all.begin = range.begin < all.begin ? range.begin : all.begin;
    all.end = range.end > all.end ? range.end : all.end;
  }
  const int out_stride = partial_floats(job.value_dim);
  float* out = job.partials + first * out_stride + kPartialHeader;
  const float* p = job.scores + first * stride;
  for_rows_and_vectors(rows, job.value_dim / 16, [&]<int R, int J>(int vector) {
    multiply_v<R, J>(
        {p, stride, job.v_tiles, all.begin, all.end, job.value_dim, vector * 16, out + vector * 16, out_stride});
  });
}

}  // namespace

void attention_chunk_avx512bf16(const ChunkJob& job) {
  const int stride = score_stride(job.n_tiles);
  for (int first = 0; first < job.rows; first += kRows) {
    const int rows = job.rows - first < kRows ? job.rows - first : kRows;
    compute_scores(job, first, rows, stride);
  }
  for (int row = 0; row < job.rows; ++row) softmax_row(job, row, stride);
  for (int first = 0; first < job.rows; first += kRows) {
    const int rows = job.rows - first < kRows ? job.rows - first : kRows;
    compute_values(job, first, rows, stride);
  }
}

}  // namespace volley::ops

#endif
