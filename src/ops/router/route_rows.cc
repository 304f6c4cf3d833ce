#include "ops/router/route_rows.h"

#include "ops/router/router_kernels.h"

namespace volley::ops {

void route_rows(Stream& stream, const RouterRule& rule, const LinearWeight& router, const Input& h,
                const RouteCall& call, const Routing& out, Arena& scratch) {
  VOLLEY_CHECK_EQ(router.n, rule.experts);
  VOLLEY_CHECK(call.logits.rank == 2);
  const auto one_kernel = kernels_on<RouterKernels>(stream).route_few_rows;
  if (one_kernel != nullptr && one_kernel(stream, rule, router, h, call, out)) return;
  linear(stream, router, h, call.logits, {}, scratch);
  route(stream, rule, call, out);
}

}  // namespace volley::ops
