// Kernels that are made for a number of ranks, and for how many floats a thread moves at once.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "device/tensor.h"

namespace volley::comm {

// Whether rows of so many floats can be moved four at once.
inline bool in_fours(const TensorView& t, int64_t floats) {
  return floats % 4 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

// f.template operator()<ranks, floats that a thread moves at once>(). REQUIRES: 1, 2, 4, 8 or 16 ranks, at most kMost.
template <int kMost, typename F>
void dispatch_ranks(int ranks, bool fours, const F& f) {
  const auto with = [&]<int kRanks>() {
    fours ? f.template operator()<kRanks, 4>() : f.template operator()<kRanks, 1>();
  };
  switch (ranks) {
    case 1:
      return with.template operator()<1>();
    case 2:
      return with.template operator()<2>();
    case 4:
      return with.template operator()<4>();
    case 8:
      return with.template operator()<8>();
    default:
      VOLLEY_CHECK(ranks == 16 && ranks <= kMost);
      if constexpr (kMost >= 16) with.template operator()<16>();
  }
}

}  // namespace volley::comm
