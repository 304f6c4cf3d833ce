// Operations of a vision tower beside products and attention (Bai et al., 2025, arXiv:2511.21631; Dosovitskiy et al.,
// 2020, arXiv:2010.11929). A row is a patch of one picture, or a head of one. Batch invariance: a row's result depends
// on that row and its place in the picture alone; sums run in one order that depends on the row's length.
#pragma once

#include <array>

#include "device/device.h"

namespace volley::ops {

// The patches of a picture. Row i is a patch: squares of merge * merge patches follow one another line by line, and so
// do the patches in each.
struct PatchGrid {
  int32_t height = 0, width = 0;  // in patches; multiples of merge
  int32_t merge = 1;

  int64_t patches() const { return int64_t{height} * width; }
};

// The row and the column of a patch.
struct PatchPlace {
  int32_t row = 0, column = 0;
};
constexpr PatchPlace place_of(const PatchGrid& grid, int64_t patch) {
  const int64_t in_square = patch % (grid.merge * grid.merge), square = patch / (grid.merge * grid.merge);
  const int64_t squares = grid.width / grid.merge;  // of a line
  return {static_cast<int32_t>(square / squares * grid.merge + in_square / grid.merge),
          static_cast<int32_t>(square % squares * grid.merge + in_square % grid.merge)};
}

// How pixels become values: (byte - mean) / std for red, green and blue, of bytes from 0 to 255.
struct PatchValues {
  int32_t size = 0;    // pixels of a patch's side
  int32_t frames = 1;  // copies of each channel's square, one after the other
  std::array<float, 3> mean = {}, std = {};
};

// y[i] = the values of patch `first + i`: [channels, frames, size, size]. pixels: [height * size, width * size, 3] kU8.
// y: [rows, 3 * frames * size * size], bf16 or fp32.
void take_patches(Stream& stream, TensorView pixels, const PatchGrid& grid, const PatchValues& values, int64_t first,
                  TensorView y);

// Biases below are added here, because a product that adds none has faster kernels on a GPU. [h] or [n] fp32.

// x[i] += bias, then the embedding of the place of patch `first + i`: bilinear in a table of side * side places whose
// corners are the picture's. table: [side * side, h] fp32. x: [rows, h] fp32.
void add_places(Stream& stream, TensorView bias, TensorView table, int32_t side, const PatchGrid& grid, int64_t first,
                TensorView x);

// LayerNorm (Ba et al., 2016, arXiv:1607.06450): y = (x - mean) / sqrt(variance + eps) * weight + bias. x: [rows, h]
// fp32. weight, bias: [h] fp32. y: [rows, h], bf16 or fp32.
void layer_norm(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y);
// x += before; y = the norm of x; x += after: the biases of the product before and of the one that adds to x next.
struct BiasesAround {
  TensorView before, after;
};
void layer_norm(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y,
                const BiasesAround& around);

// x = gelu(x + bias), in fp32, rounded once. By tanh: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)); else exact: x (1 +
// erf(x / sqrt(2))) / 2. x: [rows, n], bf16 or fp32.
void gelu(Stream& stream, TensorView x, TensorView bias, bool by_tanh);

// Heads of `dim` elements from the room of wider ones that kernels of attention take (QkvWrite::narrow_dim): both
// halves begin a half there. wide: [rows, heads * room]; narrow: [rows, heads * dim]; both bf16 or fp32.
void narrow_heads(Stream& stream, TensorView wide, int32_t heads, TensorView narrow);

}  // namespace volley::ops
