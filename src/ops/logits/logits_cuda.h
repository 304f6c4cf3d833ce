// The CUDA kernels of this folder. Private to it.
#pragma once

#include "ops/logits/logits.h"

namespace volley::ops {

void softcap_cuda(Stream& stream, TensorView x, float cap);
void spread_columns_cuda(Stream& stream, TensorView x, TensorView ids, TensorView y);

}  // namespace volley::ops
