// The kernels of this folder. Private to it; arguments are checked in norm.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/norm/norm.h"

namespace volley::ops {

struct NormKernels {
  void (*rms_norm)(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
                   const FeatureBlock& copy);
  void (*add_normed)(Stream& stream, TensorView y, TensorView weight, float eps, float scale, TensorView x,
                     TensorView factor);

  static const NormKernels kCpu, kCuda;
};

}  // namespace volley::ops
