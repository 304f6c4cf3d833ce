// Codes of 4, 6 and 8 bits on CUDA: packed layout, plan and entry points. Private to this folder and grouped_linear.
//
// The value of a code is rounded to bf16, (code - zero point) * scale, or code * scale + minimum: in every way the
// product is that of a bf16 weight with these values (linear_cuda.h), bit for bit; but weights of at most three outputs
// in bf16 have a kernel that adds in another order. (With rows in fp32 it is not rounded, as on the CPU.)
//
// Packed layout: panels of 64 rows as those of bf16, a panel a run of blocks of 64 columns, a block two halves of 32
// rows. A half: 1024 bytes of codes, [2 sets of 16 rows][lane][step of 16 columns], each a word with what that lane
// multiplies in that step: register i of its four has the codes in bits 4 i and 4 i + 16. Larger codes, counted from
// their smallest, have their lower 4 bits there; then come the upper ones: of 8 bits likewise, of 6 bits 512 bytes,
// [2 sets][lane][2 steps], of the step 2 s + t in bits 8 t + 2 i and 16 further on. Then a scale for each row and each
// of its code_scales() groups in the block (one where a group is wider than a block), [16 rows: 8][group][row, row +
// 8]: its fp32 bits, and with zero points those in the lower 8; behind a row's scales lie as many minimums where the
// format has them.
#pragma once

#include <cstring>

#include "base/math.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {

inline constexpr int kCodeBytes = 1024;  // bytes of a half's codes of 4 bits
inline constexpr int kMostCodeWords = 4, kMostWideWords = 8;
// Whether codes are stored so.
inline bool lies_in_halves(const WeightFormat& format) {
  return format.is_nibbles() || format.code == DType::kI8 || format.code == DType::kI6;
}
// Words for the scales of a row in a block. Larger codes have kernels for few numbers of them alone.
constexpr int code_scales(const WeightFormat& format) {
  if (format.code == DType::kI8) return format.minimums ? 4 : 2;
  if (format.code == DType::kI6) return format.minimums && format.group_k >= 32 ? 2 : 4;
  if (format.minimums) return 2;
  return format.group_k >= kBlockK ? 1 : static_cast<int>(kBlockK) / format.group_k;
}
constexpr int code_words(const WeightFormat& format) {
  return code_scales(format) * (format.minimums ? 2 : 1);
}
constexpr int code_half_bytes(int words, int bits) {
  return kCodeBytes / 4 * bits + 32 * words * 4;
}
inline int code_half_bytes(const WeightFormat& format) {
  return code_half_bytes(code_words(format), format.code_bits());
}
// The most for any format of 4 bits, or of more.
constexpr int most_half_bytes(bool wide) {
  return wide ? code_half_bytes(kMostWideWords, 8) : code_half_bytes(kMostCodeWords, 4);
}

// Where the lower 4 bits of a code lie in its half: the word, and their first bit in it; and where the upper ones do.
struct CodePlace {
  int word, bit;
};
constexpr CodePlace code_place(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, i = row % 16 / 8 + column % 16 / 8 * 2;
  return {(row / 16 * 32 + lane) * 4 + column / 16, 4 * i + column % 2 * 16};
}
constexpr CodePlace upper_place(int row, int column, int bits) {
  const CodePlace low = code_place(row, column);
  const int word = kCodeBytes / 4 + low.word, step = column / 16;
  if (bits == 8) return {word, low.bit};
  return {kCodeBytes / 4 + low.word / 4 * 2 + step / 2, step % 2 * 8 + low.bit % 16 / 2 + low.bit / 16 * 16};
}
// The word of a scale, counted from the start of the half.
constexpr int scale_place(int row, int group, int words, int bits) {
  return kCodeBytes / 16 * bits + (row / 16 * 8 + row % 8) * words * 2 + group * 2 + row % 16 / 8;
}

int64_t linear_codes_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout);

// A row of a part, or none.
struct CodeSource {
  const WeightRows* part = nullptr;
  int64_t row = 0;
};
// A panel of the rows that source() gives for 0 to 63. An error where a scale leaves no room for its zero point.
Status pack_code_panel(const std::function<CodeSource(int64_t)>& source, int64_t k, const WeightFormat& format,
                       char* panel);
// Calls run(i) for each i below count, by a thread for each core that the process may use.
void for_each_in_parallel(int64_t count, const std::function<void(int64_t)>& run);

// As pack_linear(). For any device: packing is done on the host.
Result<LinearWeight> pack_codes(Device& device, std::span<const WeightRows> parts, int64_t k,
                                const WeightFormat& format, LinearLayout layout);

// The plan of a call: split and order as LinearCudaPlan::make() has them for bf16.
LinearCudaPlan linear_codes_plan(const LinearWeight& w, int64_t rows, bool biased);
// All tiles that have a kernel. wide: for codes of more than 4 bits.
std::vector<LinearTile> linear_codes_tiles(LinearLayout layout, int split, bool biased, bool wide);

// The kernels; linear_codes_cuda() chooses.
void linear_codes_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end);
void linear_codes_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end,
                             const LinearCudaPlan& plan);
void linear_codes_portable_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);
void linear_codes_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);

}  // namespace volley::ops
