// The kernels of this folder. Private to it; arguments are checked in wide_norm.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/wide_norm/wide_norm.h"

namespace volley::ops {

struct WideNormKernels {
  void (*sum_squares)(Stream& stream, const WideNorm& norm);
  void (*norm_by_sums)(Stream& stream, const WideNorm& norm, int ranks);

  static const WideNormKernels kCpu, kCuda;
};

}  // namespace volley::ops
