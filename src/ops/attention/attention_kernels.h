// The kernels of this folder. Private to it; shapes and dtypes are checked in attention.cc.
#pragma once

#include "ops/attention/attention.h"
#include "ops/kernels.h"

namespace volley::ops {

struct AttentionKernels {
  // As the public functions. The CPU has one backend and plans inside attention().
  Result<AttentionBackend> (*resolve_backend)(const GpuInfo& gpu, AttentionBackend asked, DType kv, int32_t head_dim,
                                              int32_t v_in_k);
  AttentionWork (*plan_attention)(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                                  Arena& scratch);
  void (*attention)(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch);

  static const AttentionKernels kCpu, kCuda;
};

}  // namespace volley::ops
