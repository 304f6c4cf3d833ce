// The CUDA kernels of this folder. Private to it.
#pragma once

#include "ops/embedding/embedding.h"

namespace volley::ops {

void embed_cuda(Stream& stream, TensorView table, TensorView ids, TensorView y);
void capture_feature_cuda(Stream& stream, TensorView x, int64_t column, TensorView features);

}  // namespace volley::ops
