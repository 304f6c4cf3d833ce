// Angles of rows whose pairs of elements turn by different positions (M-RoPE; Wang et al., 2024, arXiv:2409.12191): a
// token of a picture has a position in time, one in height and one in width, and each pair of a head follows one of
// them. A pass over such rows takes a table of its own from the model's, once, and all layers read that.
#pragma once

#include "device/device.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

inline constexpr int32_t kRopeAxes = 3;  // time, height, width

// to.cos[r][i] = from.cos[positions[r][axes[i]]][i], and sin likewise; values are copied as they are. positions: [rows,
// kRopeAxes] int32, each a row of `from`. axes: [pairs] int32: the axis of each pair. to: [rows, pairs].
void take_rope_angles(Stream& stream, const RopeTables& from, TensorView axes, TensorView positions,
                      const RopeTables& to);

}  // namespace volley::ops
