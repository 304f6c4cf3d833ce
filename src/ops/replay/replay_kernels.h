// The kernels of this folder. Private to it; arguments are checked in replay.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/replay/replay.h"

namespace volley::ops {

struct ReplayKernels {
  void (*replay_drafts)(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens, float* confidence);

  static const ReplayKernels kCpu, kCuda;
};

}  // namespace volley::ops
