// From 4-bit codes to the bf16 values that they stand for, in the registers in which the matrix units take a left side
// (linear_cuda_codes.h has the layout).
#pragma once

#include <cstdint>

#include "ops/linear/linear_cuda_codes.h"

namespace volley::ops {

// How codes are to be read, the same for a whole weight.
struct CodeKind {
  int words = 1;       // scales of a row in a block
  bool fp4 = false;    // e2m1 instead of integers
  bool zeros = false;  // scales have a zero point in their lower bits

  CodeKind() = default;
  explicit CodeKind(const WeightFormat& format)
      : words(code_words(format.group_k)), fp4(format.code == DType::kF4E2M1), zeros(format.zeros) {}
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
__device__ __forceinline__ uint32_t floats(uint32_t word, int i) {
  // Two bits of exponent and one of mantissa, where bf16 has them, are 2^-126 of the value.
  constexpr uint32_t kUp = 0x7e807e80, kMinusZero = 0x80008000;
  const uint32_t magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
  return fma2(((word << (12 - 4 * i)) & 0x80008000) | (magnitude & 0x01c001c0), kUp, kMinusZero);
}

// Rounds values * scale once.
__device__ __forceinline__ uint32_t scaled_exactly(uint32_t values, float scale) {
  uint32_t d;
  const float low = __fmul_rn(__uint_as_float(values << 16), scale);
  const float high = __fmul_rn(__uint_as_float(values & 0xffff0000), scale);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// kShort: scales are bf16 numbers, so that bf16 arithmetic rounds once, too.
template <bool kFp4, bool kZeros, bool kShort, int kWords>
__device__ __forceinline__ void widen(const uint32_t (&words)[4], const uint32_t (&scales)[2 * kWords],
                                      uint32_t (&a)[4][4]) {
  uint32_t factor[2 * kWords], less[2 * kWords];
#pragma unroll
  for (int j = 0; j < 2 * kWords; ++j) {
    less[j] = kZeros ? twice(0xc300 | (scales[j] & 0xff)) : 0xc308c308;
    factor[j] = kShort ? __byte_perm(scales[j], 0, 0x3232) : kZeros ? scales[j] & 0xffffff00 : scales[j];
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = step * kWords / 4 * 2 + i % 2;
      const uint32_t values = kFp4 ? floats(words[step], i) : integers(words[step], i, less[j]);
      a[step][i] = kShort ? fma2(values, factor[j], 0x80008000) : scaled_exactly(values, __uint_as_float(factor[j]));
    }
  }
}

template <int kWords>
__device__ __forceinline__ void widen(const CodeKind& kind, const uint32_t (&words)[4],
                                      const uint32_t (&scales)[2 * kWords], uint32_t (&a)[4][4]) {
  uint32_t tails = 0;
#pragma unroll
  for (uint32_t scale : scales) tails |= scale;
  const bool is_short = __all_sync(0xffffffff, (tails & (kind.zeros ? 0xff00 : 0xffff)) == 0);
  if (kind.fp4) {
    return is_short ? widen<true, false, true, kWords>(words, scales, a)
                    : widen<true, false, false, kWords>(words, scales, a);
  }
  if (kind.zeros) {
    return is_short ? widen<false, true, true, kWords>(words, scales, a)
                    : widen<false, true, false, kWords>(words, scales, a);
  }
  is_short ? widen<false, false, true, kWords>(words, scales, a) : widen<false, false, false, kWords>(words, scales, a);
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

template <int kWords>
__device__ __forceinline__ void widen_half(const CodeKind& kind, uint32_t half, int set, uint32_t (&a)[4][4]) {
  const int lane = threadIdx.x % 32;
  uint32_t words[4], scales[2 * kWords];
  load_shared(half + (set * 32 + lane) * 16, words);
  load_shared(half + kCodeBytes + (set * 8 + lane / 4) * kWords * 8, scales);
  widen<kWords>(kind, words, scales, a);
}

}  // namespace codes

// The left sides of four steps of 16 columns: of the calling warp's 16 rows, set 0 or 1 of a half in shared memory.
__device__ __forceinline__ void widen_half(const CodeKind& kind, uint32_t half, int set, uint32_t (&a)[4][4]) {
  if (kind.words == 1) return codes::widen_half<1>(kind, half, set, a);
  if (kind.words == 2) return codes::widen_half<2>(kind, half, set, a);
  codes::widen_half<4>(kind, half, set, a);
}

// One value, in fp32: of packed row `row`.
__device__ inline float widened(const uint8_t* packed, const CodeKind& kind, int64_t row, int64_t k, int64_t columns) {
  const int64_t half_bytes = code_half_bytes(kind.words), blocks = (columns + kBlockK - 1) / kBlockK;
  const int r = static_cast<int>(row % 32), column = static_cast<int>(k % kBlockK);
  const auto* half = reinterpret_cast<const uint32_t*>(
      packed + ((row / kPanelRows * blocks + k / kBlockK) * 2 + row % kPanelRows / 32) * half_bytes);
  const CodePlace place = code_place(r, column);
  const uint32_t code = (half[place.word] >> place.bit) & 0xf;
  const uint32_t scale = half[scale_place(r, column * kind.words / static_cast<int>(kBlockK), kind.words)];
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
