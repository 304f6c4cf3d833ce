// The CPU kernels of this folder. Private to it.
#pragma once

#include "ops/router/router.h"

namespace volley::ops {

void route_cpu(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);

}  // namespace volley::ops
