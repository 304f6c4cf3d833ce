// An addition to the residual stream and the norm that reads it next, as one operation.
#pragma once

#include "ops/norm/norm.h"

namespace volley::ops {

struct AddedNorm {
  // The addition: add_normed(y, end_weight, end_eps, scale, x, factor).
  TensorView y, end_weight;
  float end_eps = 0, scale = 1;
  TensorView factor = {};
  // The norm of the result: rms_norm(x, weight, eps, {}, h, copy).
  TensorView weight = {};
  float eps = 0;
  Input h = {};
  FeatureBlock copy = {};
};

// x: [rows, h] fp32. The bits are those of the two operations, one after the other.
void add_normed_and_norm(Stream& stream, const AddedNorm& args, TensorView x);

}  // namespace volley::ops
