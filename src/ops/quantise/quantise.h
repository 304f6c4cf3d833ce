// Rows as matrix products take them (Input): plain, or as e4m3 codes with one scale for each row, which makes the
// largest magnitude of the row the largest of the type.
//
// Batch invariance: codes and scale of a row depend on that row alone.
#pragma once

#include "device/arena.h"

namespace volley::ops {

// The rows that go into a product. Row m is values[m], or values[m] * scales[m] where values are codes: their dtype
// says so.
struct Input {
  Input() = default;
  Input(TensorView values, TensorView scales = {}) : values(values), scales(scales) {}  // NOLINT: plain rows are rows

  TensorView values;  // [rows, k]: bf16 or fp32, or codes (kF8E4M3)
  TensorView scales;  // [rows] fp32; a null view unless the values are codes

  int64_t rows() const { return values.shape[0]; }
  bool is_codes() const { return values.dtype == DType::kF8E4M3; }
};

inline constexpr int64_t kQuantisedColumns = 16;  // k of codes is a multiple of this

// Room for rows of this type.
Input take_rows(Arena& scratch, DType dtype, int64_t rows, int64_t k);

// y.values[m, i] = x[m, i] / s as the nearest e4m3 (the quotient as product with 1 / s), y.scales[m] = s: the largest
// magnitude of row m over 448, and at least the least normal fp32 value. A row that holds a NaN or an infinity has NaN
// as its scale. x: [rows, k], bf16 or fp32, k a multiple of kQuantisedColumns. rows may be 0. CUDA alone.
void quantise_rows(Stream& stream, TensorView x, const Input& y);

}  // namespace volley::ops
