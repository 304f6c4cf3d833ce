// The kernels of this folder. Private to it; arguments are checked in router.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/router/route_rows.h"
#include "ops/router/router.h"

namespace volley::ops {

// CUDA: up to this many rows one kernel does all.
inline constexpr int64_t kRowsInOneKernel = 64;

struct RouterKernels {
  void (*route)(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);
  // Returns whether one kernel did the work of route_rows(); if not, nothing was done. Null: there is no such kernel.
  bool (*route_few_rows)(Stream& stream, const RouterRule& rule, const LinearWeight& router, const Input& h,
                         const RouteCall& call, const Routing& out);
  void (*group_chosen)(Stream& stream, const ChosenRows& chosen, const ExpertRange& own, const Routing& out,
                       int64_t* touched_total);

  static const RouterKernels kCpu, kCuda;
};

}  // namespace volley::ops
