// Elements of either type of activations, on the CPU.
#pragma once

#include "device/dtype.h"

namespace volley::ops {

inline float as_float(float x) {
  return x;
}
inline float as_float(BFloat16 x) {
  return to_float(x);
}
inline void put_float(float x, float& to) {
  to = x;
}
inline void put_float(float x, BFloat16& to) {
  to = to_bfloat16(x);
}

}  // namespace volley::ops
