// The kernels of this folder. Private to it; shapes and dtypes are checked in rope_angles.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/rope_angles/rope_angles.h"

namespace volley::ops {

struct RopeAngleKernels {
  void (*take)(Stream& stream, const RopeTables& from, TensorView axes, TensorView positions, const RopeTables& to);

  static const RopeAngleKernels kCpu, kCuda;
};

}  // namespace volley::ops
