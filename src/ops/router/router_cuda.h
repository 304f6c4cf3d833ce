// The CUDA kernels of this folder. Private to it.
#pragma once

#include "ops/router/router.h"

namespace volley::ops {

// Up to this many rows one kernel does all.
inline constexpr int64_t kRowsInOneKernel = 64;

void route_cuda(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);

}  // namespace volley::ops
