// The CUDA kernel of this folder. Private to it.
#pragma once

#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

void write_qkv_cuda(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args);

}  // namespace volley::ops
