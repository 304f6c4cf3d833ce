// Products of bf16 rows with weights that are codes, on AVX-512 BF16 with VBMI: codes become bf16 in registers.
// The rules at the top of linear_avx512bf16-inl.h hold here.
#include "ops/linear/cpu/linear_cpu.h"

#if defined(__x86_64__)
#include "ops/linear/cpu/linear_avx512bf16-inl.h"

namespace volley::ops {
namespace {

// A pair of codes of each output as a pair of bf16, from 64 bytes of codes. Table look-ups read the lowest 5 bits of a
// half word, one more than a code has, which is why its table stands there twice.
struct Nibbles {
  static constexpr int kLines = 1, kPairs = 4;  // pairs of columns in so many lines of 64 bytes
  static constexpr bool kZeros = false, kMinimums = false;
  __m512i table;

  using Words = __m512i;
  Words read(const char* lines) const { return _mm512_load_si512(lines); }
  template <int kPair>
  __m512i pair(Words words, __m512i) const {
    return _mm512_permutexvar_epi16(kPair == 0 ? words : _mm512_srli_epi16(words, 4 * kPair), table);
  }
};

struct Int4 : Nibbles {
  Int4()
      : Nibbles{_mm512_set_epi16(  // 7 … -8, 7 … -8
            0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0, -0x4080, -0x4000, -0x3fc0, -0x3f80, -0x3f60,
            -0x3f40, -0x3f20, -0x3f00, 0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0, -0x4080, -0x4000,
            -0x3fc0, -0x3f80, -0x3f60, -0x3f40, -0x3f20, -0x3f00)} {}
};

// From 0 on, with minimums.
struct Int4Above : Nibbles {
  static constexpr bool kMinimums = true;
  Int4Above()
      : Nibbles{_mm512_set_epi16(  // 15 … 0, twice
            0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040,
            0x4000, 0x3f80, 0, 0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40e0, 0x40c0, 0x40a0,
            0x4080, 0x4040, 0x4000, 0x3f80, 0)} {}
};

struct Fp4 : Nibbles {
  Fp4()
      : Nibbles{_mm512_set_epi16(  // -6 … -0, 6 … 0, twice
            -0x3f40, -0x3f80, -0x3fc0, -0x4000, -0x4040, -0x4080, -0x4100, -0x8000, 0x40c0, 0x4080, 0x4040, 0x4000,
            0x3fc0, 0x3f80, 0x3f00, 0, -0x3f40, -0x3f80, -0x3fc0, -0x4000, -0x4040, -0x4080, -0x4100, -0x8000, 0x40c0,
            0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0)} {}
};

// With zero points the table is indexed by the 5 bits of their difference.
struct Uint4 {
  static constexpr int kLines = 1, kPairs = 4;
  static constexpr bool kZeros = true, kMinimums = false;
  __m512i table = _mm512_set_epi16(  // -1 … -16, 15 … 0
      -0x4080, -0x4000, -0x3fc0, -0x3f80, -0x3f60, -0x3f40, -0x3f20, -0x3f00, -0x3ef0, -0x3ee0, -0x3ed0, -0x3ec0,
      -0x3eb0, -0x3ea0, -0x3e90, -0x3e80, 0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100, 0x40e0,
      0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0);
  __m512i mask = _mm512_set1_epi16(0xf);

  using Words = __m512i;
  Words read(const char* lines) const { return _mm512_load_si512(lines); }
  template <int kPair>
  __m512i pair(Words words, __m512i zero) const {
    const __m512i codes = _mm512_and_si512(kPair == 0 ? words : _mm512_srli_epi16(words, 4 * kPair), mask);
    return _mm512_permutexvar_epi16(_mm512_sub_epi16(codes, zero), table);
  }
};

// The bf16 of each e4m3 without its sign, byte by byte: table look-ups of single bytes read the lowest 7 bits.
struct Fp8Table {
  alignas(64) uint8_t high[128], low[128];
};
constexpr Fp8Table make_fp8_table() {
  constexpr int kSmall[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // multiples of 2^-9
  Fp8Table table = {};
  for (int i = 0; i < 128; ++i) {
    const int bits = i < 8 ? kSmall[i] : (i << 4) + (120 << 7);  // the exponent's bias goes from 7 to 127
    table.high[i] = static_cast<uint8_t>(bits >> 8);
    table.low[i] = static_cast<uint8_t>(bits & 0xff);
  }
  return table;
}
constexpr Fp8Table kFp8Table = make_fp8_table();

struct Bytes {
  static constexpr int kLines = 1, kPairs = 2;
  static constexpr bool kZeros = false, kMinimums = false;
  static constexpr int kOrAnd = 0xf8;  // a | (b & c)
  __m512i upper = _mm512_set1_epi16(-0x100), lower = _mm512_set1_epi16(0xff);

  struct Words {
    __m512i high, low;  // bytes of bf16, where their codes were
  };
  template <int kPair>
  __m512i pair(const Words& words, __m512i) const {
    return kPair == 0 ? _mm512_ternarylogic_epi32(_mm512_slli_epi16(words.high, 8), words.low, lower, kOrAnd)
                      : _mm512_ternarylogic_epi32(_mm512_srli_epi16(words.low, 8), words.high, upper, kOrAnd);
  }
};

struct Fp8 : Bytes {
  __m512i high_0 = _mm512_load_si512(kFp8Table.high), high_1 = _mm512_load_si512(kFp8Table.high + 64);
  __m512i low_0 = _mm512_load_si512(kFp8Table.low), low_1 = _mm512_load_si512(kFp8Table.low + 64);
  __m512i sign = _mm512_set1_epi8(-0x80);

  Words read(const char* lines) const {
    const __m512i codes = _mm512_load_si512(lines);
    const __m512i high = _mm512_permutex2var_epi8(high_0, codes, high_1);
    return {_mm512_ternarylogic_epi32(high, codes, sign, kOrAnd), _mm512_permutex2var_epi8(low_0, codes, low_1)};
  }
};

// The bf16 of each int8: 0 … 127, then -128 … -1.
struct Int8Table {
  alignas(64) uint8_t high[256], low[256];
};
constexpr Int8Table make_int8_table() {
  Int8Table table = {};
  for (int i = 0; i < 256; ++i) {
    const auto value = static_cast<float>(i < 128 ? i : i - 256);
    const auto bits = __builtin_bit_cast(uint32_t, value) >> 16;
    table.high[i] = static_cast<uint8_t>(bits >> 8);
    table.low[i] = static_cast<uint8_t>(bits & 0xff);
  }
  return table;
}
constexpr Int8Table kInt8Table = make_int8_table();

template <bool kWithMinimums>
struct Int8 : Bytes {
  static constexpr bool kMinimums = kWithMinimums;

  static __m512i look_up(const uint8_t* table, __m512i codes, __mmask64 negative) {
    const auto entries = [&](int at) { return _mm512_load_si512(table + at); };
    return _mm512_mask_blend_epi8(negative, _mm512_permutex2var_epi8(entries(0), codes, entries(64)),
                                  _mm512_permutex2var_epi8(entries(128), codes, entries(192)));
  }
  Words read(const char* lines) const {
    const __m512i codes = _mm512_load_si512(lines);
    const __mmask64 negative = _mm512_movepi8_mask(codes);
    return {look_up(kInt8Table.high, codes, negative), look_up(kInt8Table.low, codes, negative)};
  }
};

template <typename Code, int kRows, int kPanels, int kPair>
inline void add_pair(const Code& code, const typename Code::Words (&words)[kPanels], const __m512i (&zeros)[kPanels],
                     const uint32_t* x, __m512 (&c)[kRows][kPanels]) {
  __m512i w[kPanels];
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) w[p] = code.template pair<kPair>(words[p], zeros[p]);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[kPair * kRows + r]));
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      c[r][p] = _mm512_dpbf16_ps(c[r][p], reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(w[p]));
    }
  }
}

// The bf16 of -32 … 31.
struct Int6Table {
  alignas(64) uint16_t bf16[64];
};
constexpr Int6Table make_int6_table() {
  Int6Table table = {};
  for (int i = 0; i < 64; ++i) {
    table.bf16[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(i - 32)) >> 16);
  }
  return table;
}
constexpr Int6Table kInt6Table = make_int6_table();

template <bool kWithMinimums>
struct Int6 {
  static constexpr int kLines = 3, kPairs = 8;
  static constexpr bool kZeros = false, kMinimums = kWithMinimums;
  static constexpr int kChoose = 0xca;  // a ? b : c, bit by bit
  __m512i below = _mm512_load_si512(kInt6Table.bf16), above = _mm512_load_si512(kInt6Table.bf16 + 32);
  __m512i four = _mm512_set1_epi16(0xf);

  struct Words {
    __m512i low[2], high;
  };
  Words read(const char* lines) const {
    return {{_mm512_load_si512(lines), _mm512_load_si512(lines + kLineBytes)},
            _mm512_load_si512(lines + 2 * kLineBytes)};
  }
  // Table look-ups read the lowest 6 bits of a half word.
  template <int kPair>
  __m512i pair(const Words& words, __m512i) const {
    const __m512i low = _mm512_srli_epi16(words.low[kPair / 4], kPair % 4 * 4);
    const __m512i high = kPair < 2 ? _mm512_slli_epi16(words.high, kPair < 2 ? 4 - 2 * kPair : 0)
                                   : _mm512_srli_epi16(words.high, kPair < 2 ? 0 : 2 * kPair - 4);
    return _mm512_permutex2var_epi16(below, _mm512_ternarylogic_epi32(four, low, high, kChoose), above);
  }
};

template <typename Code>
struct Codes {
  template <int kRows, int kPanels>
  static void multiply(const TileProduct& t, const char* weights, float* sums, const char* next) {
    constexpr int64_t kColumns = 2 * Code::kPairs, kBytes = Code::kLines * kLineBytes;  // that are read together
    const Code code;
    const uint32_t* x = static_cast<const uint32_t*>(t.x);
    const float* x_sums = t.x_sums;
    bool first = t.first;
    for (int64_t k = 0; k < t.k; k += t.group, x_sums += kRows, first = false) {
      const int64_t count = t.k - k < t.group ? t.k - k : t.group;
      const char* scales = weights;
      const bool halves = Code::kMinimums && t.halves;
      weights += (Code::kZeros || Code::kMinimums) && !halves ? 2 * kLineBytes : kLineBytes;
      __m512i zeros[kPanels];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        zeros[p] = _mm512_setzero_si512();
        if constexpr (Code::kZeros) {
          zeros[p] = _mm512_cvtps_epi32(_mm512_load_ps(scales + kLineBytes + p * t.panel_bytes));
          zeros[p] = _mm512_or_si512(zeros[p], _mm512_slli_epi32(zeros[p], 16));
        }
      }
      __m512 c[kRows][kPanels];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) c[r][p] = _mm512_setzero_ps();
      }
      for (int64_t i = 0; i < count; i += kColumns, weights += kBytes, next += kBytes, x += Code::kPairs * kRows) {
        typename Code::Words words[kPanels];
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) {
          words[p] = code.read(weights + p * t.panel_bytes);
          if constexpr (kRows >= kPrefetchRows) {
            for (int64_t at = 0; at < kBytes; at += kLineBytes) {
              _mm_prefetch(next + p * t.panel_bytes + at, _MM_HINT_T0);
            }
          }
        }
        add_pair<Code, kRows, kPanels, 0>(code, words, zeros, x, c);
        add_pair<Code, kRows, kPanels, 1>(code, words, zeros, x, c);
        if constexpr (Code::kPairs > 2) {
          add_pair<Code, kRows, kPanels, 2>(code, words, zeros, x, c);
          add_pair<Code, kRows, kPanels, 3>(code, words, zeros, x, c);
        }
        if constexpr (Code::kPairs > 4) {
          add_pair<Code, kRows, kPanels, 4>(code, words, zeros, x, c);
          add_pair<Code, kRows, kPanels, 5>(code, words, zeros, x, c);
          add_pair<Code, kRows, kPanels, 6>(code, words, zeros, x, c);
          add_pair<Code, kRows, kPanels, 7>(code, words, zeros, x, c);
        }
      }
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const char* head = scales + p * t.panel_bytes;
        // A line's first (second) values of fp16, or the first (second) line.
        const auto values = [&](int second) {
          if (!halves) return _mm512_load_ps(head + second * kLineBytes);
          const auto* half = reinterpret_cast<const __m256i*>(head) + second;
          return _mm512_cvtph_ps(_mm256_load_si256(half));
        };
        const __m512 scale = values(0);
        __m512 minimum = _mm512_setzero_ps();
        if constexpr (Code::kMinimums) minimum = values(1);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          float* sum = sums + (p * kRows + r) * kPanelWidth;
          __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(sum);
          if constexpr (Code::kMinimums) before = _mm512_fmadd_ps(_mm512_set1_ps(x_sums[r]), minimum, before);
          _mm512_store_ps(sum, _mm512_fmadd_ps(c[r][p], scale, before));
        }
      }
    }
  }
};

}  // namespace

void sum_groups_avx512bf16(const uint32_t* tile, int64_t rows, int64_t k, int64_t group, float* sums) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  const auto lanes = static_cast<__mmask16>((1u << rows) - 1);
  for (int64_t begin = 0; begin < k; begin += group, sums += rows) {
    const int64_t count = k - begin < group ? k - begin : group;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i += 2, tile += rows) {
      const __m512i pairs = _mm512_maskz_loadu_epi32(lanes, tile);
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pairs), reinterpret_cast<__m512bh>(ones));
    }
    _mm512_mask_storeu_ps(sums, lanes, sum);
  }
}

TileMultiply multiply_codes_avx512bf16(const WeightFormat& format) {
  switch (format.code) {
    case DType::kI4:
      if (format.minimums) return multiply_tile<Codes<Int4Above>>;
      return format.zeros ? multiply_tile<Codes<Uint4>> : multiply_tile<Codes<Int4>>;
    case DType::kI6:
      return format.minimums ? multiply_tile<Codes<Int6<true>>> : multiply_tile<Codes<Int6<false>>>;
    case DType::kI8:
      return format.minimums ? multiply_tile<Codes<Int8<true>>> : multiply_tile<Codes<Int8<false>>>;
    case DType::kF4E2M1:
      return multiply_tile<Codes<Fp4>>;
    default:
      return multiply_tile<Codes<Fp8>>;
  }
}

}  // namespace volley::ops

#else  // cpu_has_avx512_vbmi() is false there

namespace volley::ops {

void sum_groups_avx512bf16(const uint32_t*, int64_t, int64_t, int64_t, float*) {
  VOLLEY_CHECK_MSG(false, "AVX-512 BF16 is for x86-64");
}
TileMultiply multiply_codes_avx512bf16(const WeightFormat&) {
  VOLLEY_CHECK_MSG(false, "AVX-512 BF16 is for x86-64");
}

}  // namespace volley::ops

#endif
