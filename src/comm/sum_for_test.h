// The order of a group's sums, for tests.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>

namespace volley::comm {

// (p0 + p1) + (p2 + p3) and so on: of `n` addends, addend(r) being rank first + r's.
inline float sum_in_pairs(const std::function<float(int)>& addend, int n, int first = 0) {
  if (n == 1) return addend(first);
  const int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)) / 2);
  return sum_in_pairs(addend, left, first) + sum_in_pairs(addend, n - left, first + left);
}

}  // namespace volley::comm
