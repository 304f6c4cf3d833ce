// The router as one operation: its product, followed by route().
#pragma once

#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace volley::ops {

// As linear(router, h) into call.logits and route() after it, bit for bit. router: [experts, hidden], kPlain. h: [rows,
// hidden]. call.logits is scratch: its content afterwards is undefined. scratch: as for linear(). On sm_90 a few rows
// take one kernel.
void route_rows(Stream& stream, const RouterRule& rule, const LinearWeight& router, const Input& h,
                const RouteCall& call, const Routing& out, Arena& scratch);

}  // namespace volley::ops
