// RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight, row by row.
// Batch invariance: the sum of squares of a row is added in one fixed order that depends on the row's length alone.
#pragma once

#include "ops/quantise/quantise.h"

namespace volley::ops {

// Where a drafter's features go: columns [index * h, (index + 1) * h) of features: [rows, some number * h], bf16 or
// fp32.
struct FeatureBlock {
  TensorView features;
  int64_t index = 0;
};

// x: [rows, h] fp32. weight: [h] fp32. y: [rows, h], bf16 or fp32, or on CUDA codes and scales as quantise_rows() would
// make them of the fp32 result, of rows or in groups; may be x itself when fp32.
// row_index: [rows of y] int32 rows of x to read (a gather), or a null view: y has the rows of x, in order.
// copy: also gets x itself, as capture_feature() would make it, unless it is a null view. REQUIRES: no row_index then,
// and features that overlap neither x nor y.
void rms_norm(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
              const FeatureBlock& copy = {});
// x += scale * (y normed as above), or with a null weight x += scale * y. Both: [rows, h] fp32, without overlap.
// factor: [1] fp32, which then multiplies x; or a null view.
void add_normed(Stream& stream, TensorView y, TensorView weight, float eps, float scale, TensorView x,
                TensorView factor = {});
// Checks of rms_norm(), for kernels elsewhere that end in one.
void check_rms_norm(const Stream& stream, TensorView x, TensorView weight, TensorView row_index, const Input& y,
                    const FeatureBlock& copy);

}  // namespace volley::ops
