// e4m3 codes of weights whose rows stay plain, on CUDA: packed layout. Only experts have kernels for them. Private to
// this folder and grouped_linear.
//
// As with 4-bit codes (linear_cuda_codes.h), the value of a code, code * scale, is rounded to bf16, and the product is
// that of a bf16 weight with these values, bit for bit.
//
// Packed layout: panels of 64 rows, a panel a run of blocks of 64 columns. A block: 4096 bytes of codes, [4 sets of 16
// rows][2 pairs of steps of 16 columns][lane][4 words], so that a lane loads 16 bytes beside its neighbour's: of a
// step, word i / 2 of its two has register i's two codes in bits 8 (i % 2) and 16 further on. Then a scale for each
// row, [4 sets][8][row, row + 8], fp32; where 128 columns share scales, the second block of each two goes without. A
// group that has a code that is NaN gets NaN as its scale: one weight that is NaN makes an output NaN, whatever the
// row.
#pragma once

#include <cstdint>

#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {

inline constexpr int kByteCodes = 4096, kByteScales = 256;  // bytes of a block
inline constexpr int kMostByteBlock = kByteCodes + kByteScales;

// Whether experts may be stored so on CUDA.
constexpr bool is_byte_codes(const WeightFormat& format) {
  return format.code == DType::kF8E4M3 && format.group_n == 1 && (format.group_k == 64 || format.group_k == 128);
}
// Whether a block has the scales of the next, too.
constexpr bool pairs_share_scales(const WeightFormat& format) {
  return format.group_k == 2 * kBlockK;
}

// Bytes of a panel before block `block`; of all that it has, for the number of its blocks.
constexpr int64_t byte_block_at(int64_t block, bool pairs_share) {
  return block * kByteCodes + (pairs_share ? (block + 1) / 2 : block) * kByteScales;
}

// Where a code lies in its block: the word, and the code's first bit in it.
struct BytePlace {
  int word, bit;
};
constexpr BytePlace byte_place(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, step = column / 16, i = row % 16 / 8 + column % 16 / 8 * 2;
  return {((row / 16 * 2 + step / 2) * 32 + lane) * 4 + step % 2 * 2 + i / 2, i % 2 * 8 + column % 2 * 16};
}
// Index of a row's scale in its block, in words.
constexpr int byte_scale_place(int row) {
  return kByteCodes / 4 + (row / 16 * 8 + row % 8) * 2 + row % 16 / 8;
}

inline int64_t linear_bytes_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  return linear_cuda_panels(n, layout) * byte_block_at(linear_cuda_k_blocks(k), pairs_share_scales(format));
}

}  // namespace volley::ops
