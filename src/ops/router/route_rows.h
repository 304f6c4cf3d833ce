// The router as one operation: its product, and route() with what comes out.
#pragma once

#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace volley::ops {

// As linear(router, h) into call.logits and route() after it, bit for bit. router: [experts, hidden], kPlain. h:
// [rows, hidden]. call.logits is scratch: what it holds afterwards says nothing. On sm_90 a few rows take one kernel.
void route_rows(Stream& stream, const RouterRule& rule, const LinearWeight& router, const ScaledRows& h,
                const RouteCall& call, const Routing& out);

}  // namespace volley::ops
