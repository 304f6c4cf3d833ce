#include "device/dtype.h"

#include <algorithm>
#include <array>
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
    case DType::kI8:
      return 1;
    case DType::kI6:
    case DType::kI4:
    case DType::kF4E2M1:
      break;
  }
  check_failed(__FILE__, __LINE__, "a dtype of whole bytes", "");
}

const char* dtype_name(DType dtype) {
  constexpr std::array kNames = {"float32", "bfloat16", "float16", "int32",      "uint8", "float8_e4m3",
                                 "int8",    "int6",     "int4",    "float4_e2m1"};  // in the order of DType
  static_assert(kNames.size() == static_cast<size_t>(DType::kF4E2M1) + 1);
  return kNames.at(static_cast<size_t>(dtype));
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

Float8E4M3 to_float8_e4m3(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  const float magnitude = std::min(std::fabs(x), kMaxFloat8E4M3);
  // Below 2^-6 steps are 2^-9 wide: the unit in the last place of a sum with 2^14.
  if (magnitude < 0x1p-6f) {
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0x1p14f) & 0xfu))};
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;  // 8 bits of exponent, 3 of mantissa
  return {static_cast<uint8_t>(sign | (rounded - (120u << 3)))};
}

}  // namespace volley
