// The CUDA kernel of this folder. Private to it.
#pragma once

#include "ops/quantise/quantise.h"

namespace volley::ops {

void quantise_rows_cuda(Stream& stream, TensorView x, const Input& y);

}  // namespace volley::ops
