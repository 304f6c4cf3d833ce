// Output gates: y *= sigmoid(gate), in place. In fp32, rounded once. Batch invariance: a row's result depends only on
// that row.
#pragma once

#include "device/device.h"

namespace volley::ops {

// y: [rows, n], bf16 or fp32. gates: [rows, m] fp32. y[i][j] is multiplied by the sigmoid of gates[i][first + j], or,
// where m is 1, of gates[i][0]. REQUIRES: m == 1 and first == 0, or first + n <= m.
void sigmoid_gate(Stream& stream, TensorView y, TensorView gates, int64_t first = 0);

}  // namespace volley::ops
