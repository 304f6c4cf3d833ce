#include "ops/router/route_rows.h"

#ifdef VOLLEY_CUDA
#include "ops/router/router_cuda.h"
#endif

namespace volley::ops {

void route_rows(Stream& stream, const RouterRule& rule, const LinearWeight& router, const ScaledRows& h,
                const RouteCall& call, const Routing& out) {
  VOLLEY_CHECK_EQ(router.n, rule.experts);
  VOLLEY_CHECK(call.logits.data != nullptr || out.rows() == 0);
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda && route_few_rows_cuda(stream, rule, router, h, call, out)) return;
#endif
  linear(stream, router, h, call.logits, Epilogue::kStore);
  route(stream, rule, call, out);
}

}  // namespace volley::ops
