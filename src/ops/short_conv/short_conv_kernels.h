// The kernels of this folder. Private to it; arguments are checked in short_conv.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/short_conv/short_conv.h"

namespace volley::ops {

struct ShortConvKernels {
  void (*short_conv)(Stream& stream, const Rows& rows, const RowView& view, const ShortConv& args);

  static const ShortConvKernels kCpu, kCuda;
};

}  // namespace volley::ops
