// Where things lie in the memory that a layer keeps of a slot, and the CPU's kernels. Private to this folder.
#pragma once

#include "base/math.h"
#include "ops/gated_delta/gated_delta.h"

namespace volley::ops {

// The beginning of a slot's memory.
struct DeltaCursor {
  int32_t position = 0;  // of the state: rows before it are part of it
  int32_t tape = 0;      // rows on the tape
};

// Offsets in bytes.
struct DeltaLayout {
  static constexpr int64_t kAlignment = 64;
  int64_t state = 0;  // [v_heads][k_dim][v_dim] fp32
  int64_t rows = 0;   // [taps - 1 + tape_rows][channels]: those before the position, then the tape
  int64_t gates = 0;  // [tape_rows][2 * v_heads] fp32
  int64_t bytes = 0;

  DeltaLayout(const DeltaShape& shape, int32_t tape_rows, DType dtype) {
    const auto after = [](int64_t begin, int64_t size) { return round_up(begin + size, kAlignment); };
    state = after(0, sizeof(DeltaCursor));
    rows = after(state, shape.v_width() * shape.k_dim * int64_t{sizeof(float)});
    const int64_t kept = shape.taps - 1 + tape_rows;
    gates = after(rows, kept * shape.channels() * static_cast<int64_t>(dtype_size(dtype)));
    bytes = after(gates, int64_t{tape_rows} * 2 * shape.v_heads * int64_t{sizeof(float)});
  }
};

void gated_delta_cpu(Stream& stream, const Rows& rows, const GatedDelta& args, Arena& scratch);

}  // namespace volley::ops
