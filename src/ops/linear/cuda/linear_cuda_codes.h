// 4-bit codes on CUDA: packed layout, plan and entry points. Private to this folder and grouped_linear.
//
// The value of a code is rounded to bf16, (code - zero point) * scale, or code * scale + minimum: in every way the
// product is that of a bf16 weight with these values (linear_cuda.h), bit for bit; but weights of at most three outputs
// in bf16 have a kernel that adds in another order. (With rows in fp32 it is not rounded, as on the CPU.)
//
// Packed layout: panels of 64 rows as those of bf16, a panel a run of blocks of 64 columns, a block two halves of 32
// rows. A half: 1024 bytes of codes, [2 sets of 16 rows][lane][step of 16 columns], each a word with what that lane
// multiplies in that step: register i of its four has the codes in bits 4 i and 4 i + 16. Then a scale for each row and
// each of its `words` groups in the block (one where a group is wider than a block), [16 rows: 8][group][row, row + 8]:
// its fp32 bits, and with zero points those in the lower 8. With minimums the words are four: the scales of the block's
// two times 32 columns, then their minimums.
#pragma once

#include <cstring>

#include "base/math.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {

inline constexpr int kCodeBytes = 1024;  // bytes of a half's codes
inline constexpr int kMostCodeWords = 4;
inline constexpr int kMinimumColumns = 32;  // that have a word for their scale and one for their minimum
constexpr int code_words(const WeightFormat& format) {
  if (format.minimums) return kMostCodeWords;
  return format.group_k >= kBlockK ? 1 : static_cast<int>(kBlockK) / format.group_k;
}
constexpr int code_half_bytes(int words) {
  return kCodeBytes + 32 * words * 4;
}

// Where a code lies in its half: the word, and the code's first bit in it.
struct CodePlace {
  int word, bit;
};
constexpr CodePlace code_place(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, i = row % 16 / 8 + column % 16 / 8 * 2;
  return {(row / 16 * 32 + lane) * 4 + column / 16, 4 * i + column % 2 * 16};
}
// The word of a scale, counted from the start of the half.
constexpr int scale_place(int row, int group, int words) {
  return kCodeBytes / 4 + (row / 16 * 8 + row % 8) * words * 2 + group * 2 + row % 16 / 8;
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
// All tiles that have a kernel.
std::vector<LinearTile> linear_codes_tiles(LinearLayout layout, int split, bool biased);

// The kernels; linear_codes_cuda() chooses.
void linear_codes_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end);
void linear_codes_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end,
                             const LinearCudaPlan& plan);
void linear_codes_portable_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);
void linear_codes_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);

}  // namespace volley::ops
