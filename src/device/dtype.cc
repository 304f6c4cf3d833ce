#include "device/dtype.h"

#include <cmath>

#include "base/check.h"

namespace volley {

size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kF8E4M3:
      return 1;
  }
  check_failed(__FILE__, __LINE__, "a known dtype", "");
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kI32:
      return "int32";
    case DType::kU8:
      return "uint8";
    case DType::kF8E4M3:
      return "float8_e4m3";
  }
  return "unknown";
}

float to_float(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

float to_float(Float8E4M3 x) {
  const int exponent = x.bits >> 3 & 0xf, mantissa = x.bits & 0x7;
  float magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  if (exponent == 0xf && mantissa == 0x7) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (x.bits & 0x80u) != 0 ? -magnitude : magnitude;
}

}  // namespace volley
