// The kernels of this folder. Private to it; arguments are checked in latent.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/latent/latent.h"

namespace volley::ops {

struct LatentKernels {
  void (*head_linear)(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y);
  void (*write_latent)(Stream& stream, const Rows& rows, const RowView& view, const LatentWrite& args);

  static const LatentKernels kCpu, kCuda;
};

}  // namespace volley::ops
