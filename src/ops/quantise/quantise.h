// Rows as matrix products take them (Input): plain, or as e4m3 codes with one scale for each row or for each group of a
// row's columns, which makes the largest magnitude there the largest of the type.
//
// Batch invariance: codes and scales of a row depend on that row alone.
#pragma once

#include "device/arena.h"

namespace volley::ops {

inline constexpr int64_t kQuantisedColumns = 16;  // k of codes is a multiple of this
inline constexpr int64_t kScaleGroup = 128;       // columns of a group

// The rows that go into a product. Row m is values[m]; for codes, by their dtype, it is values[m] * scales[m]. In
// groups element i is values[m, i] * scales[i / kScaleGroup, m]: kernels read a group's scales of neighbouring rows
// together.
struct Input {
  Input() = default;
  Input(TensorView values, TensorView scales = {}) : values(values), scales(scales) {}  // NOLINT: plain rows are rows

  TensorView values;  // [rows, k]: bf16 or fp32, or codes (kF8E4M3)
  // fp32, on 16 bytes: [rows], or in groups [k / kScaleGroup, rows], both rounded up, the rows to a multiple of 4. A
  // null view unless the values are codes.
  TensorView scales;

  int64_t rows() const { return values.shape[0]; }
  bool is_codes() const { return values.dtype == DType::kF8E4M3; }
  bool in_groups() const { return is_codes() && scales.rank == 2; }
  // Whether codes have scales of the required shape.
  bool has_scales() const;
};

// Room for rows of this type; for codes with scales of groups of columns if they are `in_groups`.
Input take_rows(Arena& scratch, DType dtype, int64_t rows, int64_t k, bool in_groups = false);

// y.values[m, i] = x[m, i] / s as the nearest e4m3 (the quotient as product with 1 / s), y.scales[m] = s: the largest
// magnitude of row m over 448, and at least the least normal fp32 value. A row that holds a NaN or an infinity has NaN
// as its scale. If y is in groups, so for each group of a row. x: [rows, k], bf16 or fp32, k a multiple of
// kQuantisedColumns. rows may be 0. CUDA alone.
void quantise_rows(Stream& stream, TensorView x, const Input& y);

}  // namespace volley::ops
