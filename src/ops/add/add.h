// Sums of two tensors of equal shape, in fp32.
// Batch invariance: an element depends on nothing but itself.
#pragma once

#include "device/device.h"

namespace volley::ops {

// y[i] += x[i]. Both fp32, with as many elements.
void add(Stream& stream, TensorView x, TensorView y);
// y[i] = x[i], likewise.
void copy(Stream& stream, TensorView x, TensorView y);

}  // namespace volley::ops
