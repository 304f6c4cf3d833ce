// The kernels of this folder. Private to it; shapes and dtypes are checked in logits.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/logits/logits.h"

namespace volley::ops {

struct LogitsKernels {
  void (*end_logits)(Stream& stream, TensorView x, const LogitsEnd& end);
  void (*spread_columns)(Stream& stream, TensorView x, TensorView ids, TensorView y);

  static const LogitsKernels kCpu, kCuda;
};

}  // namespace volley::ops
