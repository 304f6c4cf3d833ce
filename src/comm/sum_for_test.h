// Sums of a group, for tests: their order, and memory that they read.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "device/tensor.h"

namespace volley::comm {

// (p0 + p1) + (p2 + p3) and so on: of `n` addends, addend(r) being rank first + r's.
inline float sum_in_pairs(const std::function<float(int)>& addend, int n, int first = 0) {
  if (n == 1) return addend(first);
  const int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)) / 2);
  return sum_in_pairs(addend, left, first) + sum_in_pairs(addend, n - left, first + left);
}

inline TensorView view(std::vector<float>& values, int64_t rows, int64_t columns) {
  return {values.data(), DType::kF32, {rows, columns}};
}

}  // namespace volley::comm
