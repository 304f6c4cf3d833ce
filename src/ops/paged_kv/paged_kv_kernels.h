// The kernels of this folder. Private to it; shapes and dtypes are checked in paged_kv.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

struct PagedKvKernels {
  void (*write_qkv)(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args);

  static const PagedKvKernels kCpu, kCuda;
};

}  // namespace volley::ops
