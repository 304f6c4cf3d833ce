// Shared by the CUDA files of this folder. Private to it.
#pragma once

#include "ops/router/router_kernels.h"

namespace volley::ops {

// Up to this many rows one kernel makes the logits, too.
inline constexpr int64_t kRowsWithProduct = 16;

// RouterKernels::route_few_rows (router_cuda_product.cu).
bool route_few_rows_cuda(Stream& stream, const RouterRule& rule, const LinearWeight& router, const Input& h,
                         const RouteCall& call, const Routing& out);

}  // namespace volley::ops
