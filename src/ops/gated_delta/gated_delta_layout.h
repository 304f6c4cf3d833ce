// The layout of the memory that a layer keeps for a slot. Private to this folder.
#pragma once

#include "base/math.h"
#include "ops/gated_delta/gated_delta.h"

namespace volley::ops {

// A slot's progress. On CUDA the blocks of a k head move the slot on by themselves, so each k head has one; the CPU
// uses the first.
struct DeltaCursor {
  int32_t position = 0;  // the state's position: rows before it are part of it
  int32_t tape = 0;      // rows on the tape
  int32_t arrived = 0;   // blocks of the k head that are done with what is kept; 0 between calls
  int32_t unused = 0;
};

// Offsets in bytes. A slot begins with its cursors: [k_heads].
struct DeltaLayout {
  static constexpr int64_t kAlignment = 64;
  int64_t state = 0;  // [v_heads][k_dim][v_dim] fp32
  int64_t rows = 0;   // [taps - 1 + tape_rows][channels]: those before the position, then the tape
  int64_t gates = 0;  // [tape_rows][2 * v_heads] fp32
  int64_t bytes = 0;

  DeltaLayout(const DeltaShape& shape, int32_t tape_rows, DType dtype) {
    const auto after = [](int64_t begin, int64_t size) { return round_up(begin + size, kAlignment); };
    state = after(0, shape.k_heads * int64_t{sizeof(DeltaCursor)});
    rows = after(state, shape.v_width() * shape.k_dim * int64_t{sizeof(float)});
    const int64_t kept = shape.taps - 1 + tape_rows;
    gates = after(rows, kept * shape.channels() * static_cast<int64_t>(dtype_size(dtype)));
    bytes = after(gates, int64_t{tape_rows} * 2 * shape.v_heads * int64_t{sizeof(float)});
  }
};

}  // namespace volley::ops
