// The CUDA kernels of this folder. Private to it.
#pragma once

#include "ops/router/route_rows.h"
#include "ops/router/router.h"

namespace volley::ops {

// Up to this many rows one kernel does all.
inline constexpr int64_t kRowsInOneKernel = 64;

void route_cuda(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);

// Up to this many rows one kernel makes the logits, too.
inline constexpr int64_t kRowsWithProduct = 16;

// Whether one kernel did what route_rows() does; if not, nothing was done.
bool route_few_rows_cuda(Stream& stream, const RouterRule& rule, const LinearWeight& router, const ScaledRows& h,
                         const RouteCall& call, const Routing& out);

}  // namespace volley::ops
