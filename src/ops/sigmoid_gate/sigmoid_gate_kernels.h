// The kernels of this folder. Private to it; arguments are checked in sigmoid_gate.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace volley::ops {

struct SigmoidGateKernels {
  void (*sigmoid_gate)(Stream& stream, TensorView y, TensorView gates, int64_t first);

  static const SigmoidGateKernels kCpu, kCuda;
};

}  // namespace volley::ops
