// The kernels of this folder. Private to it; arguments are checked in add.cc.
#pragma once

#include "ops/add/add.h"
#include "ops/kernels.h"

namespace volley::ops {

struct AddKernels {
  void (*add)(Stream& stream, TensorView x, TensorView y);
  void (*copy)(Stream& stream, TensorView x, TensorView y);

  static const AddKernels kCpu, kCuda;
};

}  // namespace volley::ops
