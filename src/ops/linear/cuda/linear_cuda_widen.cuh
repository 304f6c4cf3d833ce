// From codes of 4, 6 or 8 bits to the bf16 values that they stand for, in the registers in which the matrix units take
// a left side (linear_cuda_codes.h has the layout).
#pragma once

#include <cstdint>

#include "ops/linear/cuda/linear_cuda_bytes.h"
#include "ops/linear/cuda/linear_cuda_codes.h"

namespace volley::ops {

// How codes are to be read, the same for all codes of a weight.
struct CodeKind {
  int words = 1;             // scales of a row in a block, and minimums
  int bits = 4;              // of a code, if it is no e4m3
  bool fp4 = false;          // e2m1 instead of integers
  bool zeros = false;        // scales have a zero point in their lower bits
  bool minimums = false;     // code * scale + minimum
  bool bytes = false;        // e4m3 (linear_cuda_bytes.h), which has kernels of its own
  bool pairs_share = false;  // e4m3: pairs_share_scales()

  CodeKind() = default;
  explicit CodeKind(const WeightFormat& format)
      : words(code_words(format)),
        bits(lies_in_halves(format) ? format.code_bits() : 4),
        fp4(format.code == DType::kF4E2M1),
        zeros(format.zeros),
        minimums(format.minimums),
        bytes(is_byte_codes(format)),
        pairs_share(bytes && pairs_share_scales(format)) {}

  __host__ __device__ int half_bytes() const { return code_half_bytes(words, bits); }
};

namespace codes {

__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t twice(uint32_t bf16) {
  return __byte_perm(bf16, bf16, 0x1010);
}

// Two values each for register i, before they are scaled: exact. `less`: -(128 + zero point), twice.
__device__ __forceinline__ uint32_t integers(uint32_t word, int i, uint32_t less) {
  // A code in the last bits of 128 is 128 + the code.
  constexpr uint32_t kOne = 0x3f803f80;
  uint32_t above;  // in one instruction, which the compiler makes two of
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(above) : "r"(word >> (4 * i)), "n"(0x000f000f), "r"(0x43004300));
  return fma2(above, kOne, less);
}
// Two bits of exponent and one of mantissa, where bf16 has them: the value times 2^-126.
__device__ __forceinline__ uint32_t small_floats(uint32_t word, int i) {
  const uint32_t magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
  return ((word << (12 - 4 * i)) & 0x80008000) | (magnitude & 0x01c001c0);
}

constexpr uint32_t kUp = 0x7e807e80, kMinusZero = 0x80008000;  // 2^126 and -0, twice

// Rounds values * scale once.
__device__ __forceinline__ uint32_t scaled_exactly(uint32_t values, float scale) {
  uint32_t d;
  const float low = __fmul_rn(__uint_as_float(values << 16), scale);
  const float high = __fmul_rn(__uint_as_float(values & 0xffff0000), scale);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// The same of values * scale + minimum in fp32, of which the product is exact.
__device__ __forceinline__ uint32_t scaled_above(uint32_t values, float scale, float minimum) {
  uint32_t d;
  const float low = __fmaf_rn(__uint_as_float(values << 16), scale, minimum);
  const float high = __fmaf_rn(__uint_as_float(values & 0xffff0000), scale, minimum);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

template <int kCount>
__device__ __forceinline__ void load_shared(uint32_t address, uint32_t (&v)[kCount]) {
  if constexpr (kCount == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[i]), "=r"(v[i + 1]), "=r"(v[i + 2]), "=r"(v[i + 3])
                   : "r"(address + i * 4));
    }
  }
}

// How codes are to be read, where the compiler must know it: e2m1 or integers; whether a row has up to two, four or
// eight words of scales in a block; whether half of them are minimums; and a code's bits.
template <bool kFp4_, int kWords_, bool kMinimums = false, int kBits_ = 4>
struct Reading {
  static constexpr bool kFp4 = kFp4_;
  static constexpr int kWords = kWords_, kBits = kBits_;
};

// Calls use(Reading()) with what `kind` says. kWide: codes have more than 4 bits.
template <bool kWide = false, typename Use>
__host__ __device__ __forceinline__ void with_reading(const CodeKind& kind, const Use& use) {
  if constexpr (kWide) {
    if (kind.bits == 8) return kind.minimums ? use(Reading<false, 8, true, 8>()) : use(Reading<false, 2, false, 8>());
    if (!kind.minimums) return use(Reading<false, 4, false, 6>());
    return kind.words == 8 ? use(Reading<false, 8, true, 6>()) : use(Reading<false, 4, true, 6>());
  } else {
    if (kind.minimums) return use(Reading<false, kMostCodeWords, true>());
    if (kind.words == 4) return kind.fp4 ? use(Reading<true, 4>()) : use(Reading<false, 4>());
    kind.fp4 ? use(Reading<true, 2>()) : use(Reading<false, 2>());
  }
}

// A lane's inputs from its warp's 16 rows of a block, as they are stored.
template <typename Reading>
struct StoredCodes {
  static constexpr int kBits = Reading::kBits;
  uint32_t words[4], upper[kBits == 4 ? 1 : kBits - 4], scales[2 * Reading::kWords];

  // Offsets in a half of the calling lane's words of the 16 rows, set 0 or 1.
  static __device__ uint32_t words_at(int set) { return (set * 32 + threadIdx.x % 32) * 16; }
  static __device__ uint32_t scales_at(const CodeKind& kind, int set) {
    return kCodeBytes / 4 * kBits + (set * 8 + threadIdx.x % 32 / 4) * kind.words * 8;
  }
  // Addresses in shared memory.
  __device__ __forceinline__ void load(const CodeKind& kind, uint32_t words_address, uint32_t scales_address) {
    load_shared(words_address, words);
    if constexpr (kBits == 8) load_shared(words_address + kCodeBytes, upper);
    // The set is the warp's number, even or odd.
    if constexpr (kBits == 6) load_shared(words_address + kCodeBytes - threadIdx.x % 64 * 8, upper);
    if (Reading::kWords == 2 && kind.words == 1) {
      uint32_t one[2];
      load_shared(scales_address, one);
      for (int i = 0; i < 4; ++i) scales[i] = one[i % 2];
    } else {
      load_shared(scales_address, scales);
    }
  }
};

// The left sides of four steps of 16 columns. All lanes of a warp call it.
template <typename Reading>
__device__ __forceinline__ void widen(const CodeKind& kind, const StoredCodes<Reading>& from, uint32_t (&a)[4][4]) {
  constexpr int kScales = 2 * Reading::kWords;
  const auto scale_of = [](int step, int i) { return step * Reading::kWords / 4 * 2 + i % 2; };
  // Where all scales are bf16 numbers, bf16 arithmetic rounds once, too. It takes 2^126 with the scale, below 2.
  const uint32_t zero_mask = kind.zeros ? 0xff : 0;
  const uint32_t tail = Reading::kFp4 ? 0x4000ffff : 0xffff & ~zero_mask;
  uint32_t tails = 0;
#pragma unroll
  for (uint32_t scale : from.scales) tails |= scale;
  const bool is_short = __all_sync(0xffffffff, (tails & tail) == 0);
  uint32_t less[kScales];  // -(128 + zero point)
#pragma unroll
  for (int j = 0; j < kScales; ++j) {
    less[j] = twice((from.scales[j] & zero_mask) | (kind.zeros ? 0xc300 : 0xc308));
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[step][i] =
          Reading::kFp4 ? small_floats(from.words[step], i) : integers(from.words[step], i, less[scale_of(step, i)]);
    }
  }
  if (is_short) {
    uint32_t factor[kScales];
#pragma unroll
    for (int j = 0; j < kScales; ++j) {
      factor[j] = __byte_perm(from.scales[j], 0, 0x3232);
      if (Reading::kFp4) factor[j] = fma2(factor[j], kUp, kMinusZero);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[step][i] = fma2(a[step][i], factor[scale_of(step, i)], kMinusZero);
    }
  } else {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t scale = from.scales[scale_of(step, i)];
        const uint32_t values = Reading::kFp4 ? fma2(a[step][i], kUp, kMinusZero) : a[step][i];
        a[step][i] = scaled_exactly(values, __uint_as_float(scale & ~zero_mask));
      }
    }
  }
}

// The same with minimums.
__device__ __forceinline__ void widen(const CodeKind&, const StoredCodes<Reading<false, kMostCodeWords, true>>& from,
                                      uint32_t (&a)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int scale = step / 2 * 2 + i % 2;  // 32 columns are two steps
      a[step][i] = scaled_above(integers(from.words[step], i, 0xc300c300), __uint_as_float(from.scales[scale]),
                                __uint_as_float(from.scales[4 + scale]));
    }
  }
}

// The same of larger codes.
template <int kWords, bool kMinimums, int kBits>
requires(kBits > 4) __device__ __forceinline__
    void widen(const CodeKind&, const StoredCodes<Reading<false, kWords, kMinimums, kBits>>& from,
               uint32_t (&a)[4][4]) {
  constexpr int kScales = kMinimums ? kWords / 2 : kWords;
  // 16 (128 + upper bits) less 2^11, 2^7 and half of all codes; all sums are exact in bf16.
  constexpr uint32_t kSixteen = 0x41804180, kLess = kBits == 8 ? 0xc510c510 : 0xc50ac50a;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t upper;
      if constexpr (kBits == 8) {
        upper = (from.upper[step] >> (4 * i)) & 0x000f000f;
      } else {
        upper = (from.upper[step / 2] >> (step % 2 * 8 + 2 * i)) & 0x00030003;
      }
      const uint32_t values = integers(from.words[step], i, fma2(upper | 0x43004300, kSixteen, kLess));
      const int scale = step * kScales / 4 * 2 + i % 2;
      if constexpr (kMinimums) {
        a[step][i] = scaled_above(values, __uint_as_float(from.scales[scale]),
                                  __uint_as_float(from.scales[2 * kScales + scale]));
      } else {
        a[step][i] = scaled_exactly(values, __uint_as_float(from.scales[scale]));
      }
    }
  }
}

}  // namespace codes

// Makes the left sides of four steps of 16 columns, for the calling warp's 16 rows, set 0 or 1 of a half in shared
// memory.
__device__ __forceinline__ void widen_half(const CodeKind& kind, uint32_t half, int set, uint32_t (&a)[4][4]) {
  const auto widen = [&](auto reading) {
    codes::StoredCodes<decltype(reading)> stored;
    stored.load(kind, half + stored.words_at(set), half + stored.scales_at(kind, set));
    codes::widen(kind, stored, a);
  };
  kind.bits == 4 ? codes::with_reading(kind, widen) : codes::with_reading<true>(kind, widen);
}

// One value of packed row `row`, in fp32.
__device__ inline float widened(const uint8_t* packed, const CodeKind& kind, int64_t row, int64_t k, int64_t columns) {
  const int64_t half_bytes = kind.half_bytes(), blocks = (columns + kBlockK - 1) / kBlockK;
  const int r = static_cast<int>(row % 32), column = static_cast<int>(k % kBlockK);
  const auto* half = reinterpret_cast<const uint32_t*>(
      packed + ((row / kPanelRows * blocks + k / kBlockK) * 2 + row % kPanelRows / 32) * half_bytes);
  const CodePlace place = code_place(r, column);
  const uint32_t code = (half[place.word] >> place.bit) & 0xf;
  float value = static_cast<float>(code);
  if (kind.bits > 4) {
    const CodePlace upper = upper_place(r, column, kind.bits);
    value += static_cast<float>(((half[upper.word] >> upper.bit) & ((1 << (kind.bits - 4)) - 1)) << 4);
    value -= static_cast<float>(1 << (kind.bits - 1));
  }
  const int scales = kind.minimums ? kind.words / 2 : kind.words, group = column * scales / static_cast<int>(kBlockK);
  const uint32_t scale = half[scale_place(r, group, kind.words, kind.bits)];
  if (kind.minimums) {
    const uint32_t minimum = half[scale_place(r, scales + group, kind.words, kind.bits)];
    return __fmaf_rn(value, __uint_as_float(scale), __uint_as_float(minimum));
  }
  if (kind.bits > 4) return __fmul_rn(value, __uint_as_float(scale));
  if (kind.fp4) {
    constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float magnitude = kValues[code % 8];
    return __fmul_rn(code < 8 ? magnitude : -magnitude, __uint_as_float(scale));
  }
  if (!kind.zeros) return __fmul_rn(static_cast<float>(static_cast<int>(code) - 8), __uint_as_float(scale));
  const int zero = static_cast<int>(scale & 0xff);
  return __fmul_rn(static_cast<float>(static_cast<int>(code) - zero), __uint_as_float(scale & 0xffffff00));
}

}  // namespace volley::ops
