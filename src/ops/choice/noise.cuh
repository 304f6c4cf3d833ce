// Philox4x32-10, Gumbel noise and token weights on a GPU: the same operations as noise-inl.h in the same order, each
// rounded as IEEE 754 says (the build has no fused multiply-add), so that their bits are the CPU's. Contracts are in
// kernels.h.
#pragma once

#include <cstdint>

#include "ops/choice/kernels.h"

namespace volley::ops::choice {

// The four words of one block: counter (block, c1, c2, 0).
__device__ inline uint4 philox(uint32_t k0, uint32_t k1, uint32_t block, uint32_t c1, uint32_t c2) {
  uint4 c = make_uint4(block, c1, c2, 0);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.x;
    const uint64_t b = uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(static_cast<uint32_t>(b >> 32) ^ c.y ^ k0, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ c.w ^ k1, static_cast<uint32_t>(a));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

__device__ inline float log_sum(float f, float e) {
  const float r = f / (2.0f + f);
  const float s = r * r;
  float p = s * (1.0f / 9) + 1.0f / 7;
  p = s * p + 1.0f / 5;
  p = s * p + 1.0f / 3;
  const float r2 = r + r;
  const float tail = s * p * r2 + e * 3.19461849e-5f;
  return e * 0.693115234375f + (r2 + tail);
}

__device__ inline void split(float x, float& m, float& e) {
  const int32_t bits = __float_as_int(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  m = __int_as_float(bits - (exponent << 23));
  e = static_cast<float>(exponent);
}

__device__ inline float unit(uint32_t x) {
  const float rest = static_cast<float>(x & 0xffffu) * 0x1p-32f + 0x1p-33f;
  return static_cast<float>(x >> 16) * 0x1p-16f + rest;
}

__device__ inline float gumbel(uint32_t x) {
  float m, e;
  split(unit(x), m, e);
  const float exponential = -log_sum(e == 0.0f ? -unit(~x) : m - 1.0f, e);
  split(exponential, m, e);
  return -log_sum(m - 1.0f, e);
}

// x = z - peak; 0 below -kWindow. Conversions between float and integer are slow on a GPU; adding a power of two that
// leaves no fraction bits rounds to the same nearest whole number, and its low bits are that number.
__device__ inline uint64_t weight(float x) {
  if (!(x >= -kWindow)) return 0;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  float r = x - n * 0.693115234375f;
  r = r - n * 3.19461849e-5f;
  float p = r * (1.0f / 5040) + 1.0f / 720;
  p = r * p + 1.0f / 120;
  p = r * p + 1.0f / 24;
  p = r * p + 1.0f / 6;
  p = r * p + 0.5f;
  p = r * r * p + r;
  p = p + 1.0f;
  const uint32_t power = __float_as_uint(shifted) - __float_as_uint(kRound) + 127 + 34;
  const float scaled = p * __uint_as_float(power << 23);
  constexpr float kWhole = 8388608.0f;  // 2^23: floats from here on are whole
  if (scaled < kWhole) return __float_as_uint(scaled + kWhole) - __float_as_uint(kWhole);
  const uint32_t bits = __float_as_uint(scaled);
  return uint64_t{(bits & 0x7fffffu) | 0x800000u} << ((bits >> 23) - 150);
}

// The order of tokens as one number: higher values first, then lower ids. 0 is below every token; only NaN, which has
// no place in the order, gives kNoNumber or more.
using Key = unsigned long long;
inline constexpr Key kNoNumber = 0xff800001ull << 32;

__device__ inline uint32_t ordered(float z) {
  const uint32_t bits = __float_as_uint(z + 0.0f);  // -0 is 0
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline Key key_of(float z, int32_t id) {
  return (Key{ordered(z)} << 32) | static_cast<uint32_t>(kMaxVocab - 1 - id);
}
__device__ inline float value_of(Key key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ inline int32_t id_of(Key key) {
  return kMaxVocab - 1 - static_cast<int32_t>(key & 0xffffffffu);
}

// The search for the highest z + g. Philox is cheap and the logarithms are not, so a cheap test first excludes words
// that cannot win. g = -log(-log u) <= -log(1 - u), so a token can reach a score s only if its odds (1 - u) exp(peak -
// z) are at most exp(peak - s). The lower the odds, the likelier the token wins. The test uses quick arithmetic with
// some slack for its roundings: an excluded token has certainly lost.
class Contest {
 public:
  // peak: the highest z, about; reached: a score that some token reaches.
  __device__ Contest(float peak, float reached) : peak_(peak) { raise(reached); }

  // The odds of the best of four tokens, whose highest logit is `highest`; +inf: it cannot win with any words.
  template <typename Words>
  __device__ float odds(float highest, Words&& words_of) const {
    if (!(highest + kGumbelMax >= low_)) return INFINITY;
    const uint4 words = words_of();
    const uint32_t most = max(max(words.x, words.y), max(words.z, words.w));
    const float complement = __uint_as_float(0x3f800000u | (~most >> 9)) - 1.0f;  // 1 - u, rounded down
    return complement * exp2_quick((peak_ - highest) * 1.44269504f);
  }
  // Whether a token with these odds can still win.
  __device__ bool open(float odds) const { return odds <= limit_; }
  __device__ void raise(float reached) {
    const float low = reached - (1e-3f + 1e-6f * fabsf(reached));
    if (low <= low_) return;
    low_ = low;
    limit_ = exp2_quick((peak_ - low_) * 1.44269504f);
  }

 private:
  __device__ static float exp2_quick(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  float peak_;
  float low_ = -INFINITY;
  float limit_ = 0.0f;
};

// The word of lane id mod 4.
__device__ inline uint32_t word_of(uint4 words, int32_t id) {
  const uint32_t low = (id & 1) != 0 ? words.y : words.x, high = (id & 1) != 0 ? words.w : words.z;
  return (id & 2) != 0 ? high : low;
}

}  // namespace volley::ops::choice
