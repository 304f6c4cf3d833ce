// The kernels of this folder. Private to it; arguments are checked in gated_delta.cc.
#pragma once

#include "ops/gated_delta/gated_delta.h"
#include "ops/kernels.h"

namespace volley::ops {

struct GatedDeltaKernels {
  void (*gated_delta)(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch);

  static const GatedDeltaKernels kCpu, kCuda;
};

}  // namespace volley::ops
