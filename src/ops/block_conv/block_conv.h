// A short convolution along the rows of a block, one kernel a channel, part of which each row makes for itself:
//   conv(x, side)[t, ch] = sum over o < taps of (base[side, o, ch] + coefficients[t, side, o, ch / group]) x[t - o,
//   ch],
// where x is 0 before the block's first row. A sublayer has two sides: 0 is of what it reads, 1 of what it gives.
// Batch invariance: a value depends on its block's rows up to its own alone. Sums are fp32, in the order of o.
#pragma once

#include "ops/quantise/quantise.h"

namespace volley::ops {

struct BlockConvShape {
  int32_t taps = 0;   // 0: there is none
  int32_t group = 0;  // neighbouring channels that share what a row adds to their kernels

  // Coefficients that a row makes for both sides of this many channels.
  int64_t coefficients(int64_t channels) const { return 2 * taps * (channels / group); }
};

struct BlockConv {
  BlockConvShape shape;
  TensorView base;          // [2 * taps * channels] fp32
  TensorView coefficients;  // [rows, shape.coefficients(channels)] fp32
  int32_t block_rows = 0;   // the rows are blocks of so many
};

// An RMSNorm (ops/norm/norm.h).
struct NormWeight {
  TensorView weight;  // [channels] fp32
  float eps = 0;
};

// y = conv(norm(x), 0), rounded once. x: [rows, channels] fp32, without overlap with y; y: plain rows, or on CUDA
// codes. zeroed: [rows, channels] fp32, becomes 0, for the sublayer to add to; or a null view. rows may be 0.
void convolve_normed(Stream& stream, const BlockConv& conv, TensorView x, const NormWeight& norm, const Input& y,
                     TensorView zeroed, Arena& scratch);
// y += conv(x, 1), and then `normed` = norm(y), as rms_norm() would make it. x, y: [rows, channels] fp32, without
// overlap. A null norm: y alone.
void add_convolved(Stream& stream, const BlockConv& conv, TensorView x, TensorView y, const NormWeight* norm = nullptr,
                   const Input& normed = {});

}  // namespace volley::ops
