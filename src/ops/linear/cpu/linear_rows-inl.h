// How the portable kernels cut a tile's rows. Included once per instruction set.
#if defined(VOLLEY_OPS_LINEAR_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLLEY_OPS_LINEAR_ROWS_INL_H
#undef VOLLEY_OPS_LINEAR_ROWS_INL_H
#else
#define VOLLEY_OPS_LINEAR_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "ops/linear/cpu/linear_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {

using F32 = hwy::HWY_NAMESPACE::CappedTag<float, kPanelWidth>;
using FVec = hwy::HWY_NAMESPACE::Vec<F32>;
constexpr int kLanes = static_cast<int>(hwy::HWY_NAMESPACE::MaxLanes(F32()));
constexpr int kVecs = 16 / kLanes;  // that hold a panel's 16 outputs

// Calls each(row, panel, vector) for all sums of some rows and panels; the loops are unrolled.
template <int kRows, int kPanels, typename Each>
HWY_INLINE void for_sums(const Each& each) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) each(r, p, v);
    }
  }
}

// Calls run(std::integral_constant) with `rows`, from kRows to kMost.
template <int kMost, int kRows = 1, typename Run>
HWY_INLINE void with_rows(int64_t rows, const Run& run) {
  if constexpr (kRows == kMost) {
    run(std::integral_constant<int, kMost>());
  } else if (rows == kRows) {
    run(std::integral_constant<int, kRows>());
  } else {
    with_rows<kMost, kRows + 1>(rows, run);
  }
}

// Calls run(how many rows, the first) with nearly equal parts of the tile's rows, each of at most kMost.
template <int kMost, typename Run>
HWY_INLINE void for_row_parts(int64_t rows, const Run& run) {
  const int64_t parts = (rows + kMost - 1) / kMost;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t row = rows * i / parts;
    with_rows<kMost>(rows * (i + 1) / parts - row, [&](auto count) { run(count, row); });
  }
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
