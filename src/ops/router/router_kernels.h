// The kernels of this folder. Private to it; arguments are checked in router.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/router/router.h"

namespace volley::ops {

// CUDA: up to this many rows one kernel does all.
inline constexpr int64_t kRowsInOneKernel = 64;

struct RouterKernels {
  void (*route)(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);

  static const RouterKernels kCpu, kCuda;
};

}  // namespace volley::ops
