// y[i, :] = x[index[i], :]: rows picked from a ragged batch, bytes unchanged.
#pragma once

#include "device/device.h"

namespace volley::ops {

// x: [rows, width] of any dtype. index: [n] int32, each in [0, rows). y: [n, width], dtype of x; must not overlap x.
void gather_rows(Stream& stream, TensorView x, TensorView index, TensorView y);

}  // namespace volley::ops
