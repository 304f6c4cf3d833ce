// The kernels of this folder. Private to it; arguments are checked in norm.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/norm/added_norm.h"

namespace volley::ops {

struct NormKernels {
  void (*rms_norm)(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
                   const FeatureBlock& copy);
  // norms: whether the norm of the result comes, too.
  void (*add_normed)(Stream& stream, const AddedNorm& args, TensorView x, bool norms);

  static const NormKernels kCpu, kCuda;
};

}  // namespace volley::ops
