// Oracles of e4m3 codes, for tests.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "device/dtype.h"

namespace volley::ops {

// The e4m3 value next to v, of two equally near ones the even one; 448 for whatever is larger.
inline float nearest_e4m3(float v) {
  if (std::isnan(v)) return v;
  const float a = std::fabs(v);
  if (a == 0) return 0;
  const float step = std::ldexp(1.0f, std::max(std::ilogb(a), -6) - 3);
  return std::copysign(std::min(std::nearbyint(a / step) * step, kMaxFloat8E4M3), v);
}

// A row as quantise_rows() makes it.
struct QuantisedRow {
  std::vector<float> values;  // values of the codes
  float scale = 0;

  QuantisedRow(const float* x, int64_t k) : values(x, x + k) {
    float largest = 0;
    for (float v : values) largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : INFINITY;
    scale = std::isinf(largest) ? std::numeric_limits<float>::quiet_NaN() : std::max(largest / kMaxFloat8E4M3, FLT_MIN);
    const float inverse = 1.0f / scale;
    for (float& v : values) v = nearest_e4m3(v * inverse);
  }
};

}  // namespace volley::ops
