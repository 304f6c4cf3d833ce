// An RMSNorm of parts of rows, which ranks may divide among them: the columns of all heads of q, and of k. Each rank
// sums the squares of its columns, the ranks' sums are added, and each rank norms its columns by them.
//
// Batch invariance: sums are fp32, in an order that depends on the part's width alone.
#pragma once

#include "device/device.h"

namespace volley::ops {

struct WideNorm {
  static constexpr int kParts = 2, kSums = 4;  // the sums beyond the parts' are 0

  struct Part {
    int64_t first = 0;
    TensorView weight;  // [width] fp32, of the columns from `first` on
  };
  TensorView x;  // [rows, columns] fp32
  Part parts[kParts];
  TensorView sums;  // [rows, kSums] fp32
  float eps = 0;
};

// sums[r][p] = the sum of the squares of part p of row r.
void sum_squares(Stream& stream, const WideNorm& norm);
// x *= weight / sqrt(sums / (width * ranks) + eps) in every part. ranks: how many have such a part, of equal width.
void norm_by_sums(Stream& stream, const WideNorm& norm, int ranks);

}  // namespace volley::ops
