// Operations between an output head's product and the choice of a token. A row's bits do not depend on other rows, nor
// on threads.
#pragma once

#include "device/device.h"

namespace volley::ops {

// The end of a head's products: x = scale * x, and with cap > 0 then x = cap * tanh(x / cap), which keeps logits within
// (-cap, cap).
struct LogitsEnd {
  float scale = 1, cap = 0;
  bool is_plain() const { return scale == 1 && cap == 0; }
};
// In place; does nothing if the end is plain. x: [rows, n] fp32.
void end_logits(Stream& stream, TensorView x, const LogitsEnd& end);

// y[i, ids[j]] = x[i, j], and -inf in all other columns: logits of a part of a vocabulary as logits of the whole, with
// tokens that cannot be chosen. Writing and reading them costs the same as for a whole head; only the head's product is
// smaller. x: [rows, n] fp32. ids: [n] int32, different from one another, each in [0, vocab). y: [rows, vocab] fp32;
// must not overlap x.
void spread_columns(Stream& stream, TensorView x, TensorView ids, TensorView y);

}  // namespace volley::ops
