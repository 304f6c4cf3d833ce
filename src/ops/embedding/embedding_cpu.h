// The CPU's side of embedding.cc. Private to this folder; shapes and dtypes are checked there.
#pragma once

#include "ops/embedding/embedding.h"

namespace volley::ops {

void embed_cpu(Stream& stream, TensorView table, TensorView ids, TensorView y);
void capture_feature_cpu(Stream& stream, TensorView x, int64_t column, TensorView features);

}  // namespace volley::ops
