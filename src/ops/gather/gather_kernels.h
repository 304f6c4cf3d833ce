// The kernels of this folder. Private to it; shapes and dtypes are checked in gather.cc.
#pragma once

#include "ops/gather/gather.h"
#include "ops/kernels.h"

namespace volley::ops {

struct GatherKernels {
  void (*gather_rows)(Stream& stream, TensorView x, TensorView index, TensorView y);

  static const GatherKernels kCpu, kCuda;
};

}  // namespace volley::ops
