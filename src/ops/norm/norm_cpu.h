// The CPU's side of norm.cc. Private to this folder; arguments are checked there.
#pragma once

#include "ops/norm/norm.h"

namespace volley::ops {

void rms_norm_cpu(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, TensorView y);

}  // namespace volley::ops
