// Row copies between the residual stream and other tensors: token embedding and feature capture; and zeroing and sums
// of rows.
#pragma once

#include <functional>

#include "device/device.h"

namespace volley::ops {

// y[m, :] = scale * table[ids[m], :] in fp32. table: [vocab, h] bf16, fp16 or fp32 as the checkpoint holds it. ids:
// [rows] int32; an id outside [0, vocab) is a CHECK failure (requests were validated). y: [rows, h] fp32.
void embed(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale = 1);

// The same of a table that is read row by row, from any thread: read_row writes the h values of one. CPU only.
using ReadRow = std::function<void(int64_t row, float* values)>;
void embed(Stream& stream, int64_t vocab, const ReadRow& read_row, TensorView ids, TensorView y, float scale = 1);

// The same of a table of codes: a value is code * scale + minimum of the code's group, in fp32; it is rounded once if
// the product is exact. CUDA only.
struct CodeTable {
  TensorView codes;     // [vocab, h] kI8
  TensorView scales;    // [vocab, groups] fp32: each for h / groups columns
  TensorView minimums;  // likewise; or a null view
};
void embed(Stream& stream, const CodeTable& table, TensorView ids, TensorView y, float scale = 1);

// features[m, column : column + h] = x[m, :], converted to the features' dtype. x: [rows, h] fp32. features: [rows,
// width], bf16 or fp32. The target calls this where no norm reads all of x next; otherwise ops::rms_norm() captures.
void capture_feature(Stream& stream, TensorView x, int64_t column, TensorView features);

// x = 0. x: [rows, h] fp32.
void zero(Stream& stream, TensorView x);

// x += y. Both: [rows, h] fp32.
void add(Stream& stream, TensorView y, TensorView x);

}  // namespace volley::ops
