// The CUDA kernel of this folder. Private to it.
#pragma once

#include "ops/gather/gather.h"

namespace volley::ops {

void gather_rows_cuda(Stream& stream, TensorView x, TensorView index, TensorView y);

}  // namespace volley::ops
