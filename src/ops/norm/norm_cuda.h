// The CUDA kernel of this folder. Private to it.
#pragma once

#include "ops/norm/norm.h"

namespace volley::ops {

void rms_norm_cuda(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
                   const FeatureBlock& copy);

}  // namespace volley::ops
