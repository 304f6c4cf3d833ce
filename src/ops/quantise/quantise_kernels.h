// The kernels of this folder. Private to it; arguments are checked in quantise.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/quantise/quantise.h"

namespace volley::ops {

struct QuantiseKernels {
  void (*quantise_rows)(Stream& stream, TensorView x, const Input& y);  // null on the CPU

  static const QuantiseKernels kCpu, kCuda;
};

}  // namespace volley::ops
