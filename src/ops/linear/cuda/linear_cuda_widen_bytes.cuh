// From e4m3 codes to the bf16 values that they stand for, like linear_cuda_widen.cuh for 4-bit codes
// (linear_cuda_bytes.h has the layout).
#pragma once

#include "ops/linear/cuda/linear_cuda_bytes.h"
#include "ops/linear/cuda/linear_cuda_widen.cuh"

namespace volley::ops::codes {

// A reading: e4m3 with one scale for a row in a block.
struct Bytes {};

constexpr uint32_t kUpBytes = 0x7b807b80;  // 2^120, twice

// Two values for register i: sign, exponent and mantissa where bf16 has them, which is the value times 2^-120, also of
// subnormals. Of NaN it makes a number: its group's scale is NaN.
__device__ __forceinline__ uint32_t small_bytes(uint32_t word, int i) {
  const uint32_t magnitude = i % 2 == 0 ? word << 4 : word >> 4, sign = i % 2 == 0 ? word << 8 : word;
  return (magnitude & 0x07f007f0) | (sign & 0x80008000);
}

// A lane's inputs from its warp's 16 rows of a block. Where blocks share scales, those of the first stay for the
// second.
template <>
struct StoredCodes<Bytes> {
  static constexpr bool kShares = true;
  uint32_t words[2][4], scales[2];

  // Offsets in a block of the calling lane's words of the 16 rows, set 0 to 3.
  static __device__ uint32_t words_at(int set) { return set * (kByteCodes / 4) + threadIdx.x % 32 * 16; }
  static __device__ uint32_t scales_at(const CodeKind&, int set) {
    return kByteCodes + (set * 8 + threadIdx.x % 32 / 4) * 8;
  }
  // Addresses in shared memory. kSecond: the second of two blocks.
  template <bool kSecond>
  __device__ __forceinline__ void load(const CodeKind& kind, uint32_t words_address, uint32_t scales_address) {
    load_shared(words_address, words[0]);
    load_shared(words_address + 512, words[1]);
    if constexpr (kSecond) {
      // Without a branch, at which the compiler would wait for the products under way.
      asm volatile("{ .reg .pred own;\n setp.eq.u32 own, %3, 0;\n @own ld.shared.v2.b32 {%0, %1}, [%2]; }"
                   : "+r"(scales[0]), "+r"(scales[1])
                   : "r"(scales_address), "r"(static_cast<uint32_t>(kind.pairs_share)));
    } else {
      load_shared(scales_address, scales);
    }
  }
};

// The left sides of four steps of 16 columns. All lanes of a warp call it.
__device__ __forceinline__ void widen(const CodeKind&, const StoredCodes<Bytes>& from, uint32_t (&a)[4][4]) {
  // Where all scales are bf16 numbers below 2, one product in bf16 with scale * 2^120 rounds once, too.
  const bool is_short = __all_sync(0xffffffff, ((from.scales[0] | from.scales[1]) & 0x4000ffff) == 0);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[step][i] = small_bytes(from.words[step / 2][step % 2 * 2 + i / 2], i);
  }
  if (is_short) {
    uint32_t factor[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) factor[j] = fma2(__byte_perm(from.scales[j], 0, 0x3232), kUpBytes, kMinusZero);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[step][i] = fma2(a[step][i], factor[i % 2], kMinusZero);
    }
  } else {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[step][i] = scaled_exactly(fma2(a[step][i], kUpBytes, kMinusZero), __uint_as_float(from.scales[i % 2]));
      }
    }
  }
}

// One value of packed row `row`, in fp32.
__device__ inline float widened_byte(const uint8_t* packed, const CodeKind& kind, int64_t row, int64_t k,
                                     int64_t columns) {
  const int64_t blocks = (columns + kBlockK - 1) / kBlockK, block = k / kBlockK, shares = kind.pairs_share;
  const uint8_t* panel = packed + row / kPanelRows * byte_block_at(blocks, shares);
  const int r = static_cast<int>(row % kPanelRows);
  const BytePlace place = byte_place(r, static_cast<int>(k % kBlockK));
  const auto* words = reinterpret_cast<const uint32_t*>(panel + byte_block_at(block, shares));
  const auto* with_scales =
      reinterpret_cast<const uint32_t*>(panel + byte_block_at(block - block % (1 + shares), shares));
  const uint32_t code = words[place.word] >> place.bit;
  const float small = __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20);
  return __fmul_rn(__fmul_rn(small, 0x1p120f), __uint_as_float(with_scales[byte_scale_place(r)]));
}

}  // namespace volley::ops::codes
