// What may lie between an output head's product and the choice of a token. Each row by itself: its bits do not depend
// on other rows, nor on threads.
#pragma once

#include "device/device.h"

namespace volley::ops {

// x = cap * tanh(x / cap), in place: keeps logits within (-cap, cap). x: [rows, n] fp32. REQUIRES: cap > 0.
void softcap(Stream& stream, TensorView x, float cap);

// y[i, ids[j]] = x[i, j], and -inf in all other columns: logits of a part of a vocabulary as logits of the whole, with
// tokens that cannot be chosen. They are written once and read once more by the choice, which is what logits of a whole
// head cost too; the head itself is the smaller. x: [rows, n] fp32. ids: [n] int32, different from one another, each in
// [0, vocab). y: [rows, vocab] fp32; must not overlap x.
void spread_columns(Stream& stream, TensorView x, TensorView ids, TensorView y);

}  // namespace volley::ops
