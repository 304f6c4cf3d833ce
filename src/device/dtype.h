// Element types of tensors, and scalar conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace volley {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kU8, kF8E4M3, kI8, kI6, kI4, kF4E2M1 };

size_t dtype_size(DType dtype);       // bytes; REQUIRES: not kI6, kI4 or kF4E2M1, whose elements share bytes
const char* dtype_name(DType dtype);  // "float32", "bfloat16", …

// Storage of a bfloat16; arithmetic happens in float.
struct BFloat16 {
  uint16_t bits = 0;
};
struct Float16 {
  uint16_t bits = 0;
};
// 4 bits of exponent, 3 of mantissa: up to 448, no infinities, NaN where all seven bits are set.
struct Float8E4M3 {
  uint8_t bits = 0;
};
inline constexpr float kMaxFloat8E4M3 = 448.0f;
// The magnitudes of 2 bits of exponent and 1 of mantissa; a fourth bit is the sign. There is no NaN.
inline constexpr float kFloat4E2M1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

float to_float(Float16 x);
float to_float(Float8E4M3 x);
// Round to nearest, ties to even; larger magnitudes become the largest one. NaN stays NaN.
Float8E4M3 to_float8_e4m3(float x);

template <typename T>
inline constexpr DType kDTypeOf = DType::kU8;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<Float8E4M3> = DType::kF8E4M3;

}  // namespace volley
