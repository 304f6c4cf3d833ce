// Inputs of operations' tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/dtype.h"

namespace volley::ops {

constexpr double kRound = 0x1p-24;  // half a unit in the last place of fp32, relative
constexpr double kRoundBF16 = 0x1p-8;

// Values of a standard normal distribution, the same for the same seed.
inline std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Bytes of bf16 or fp32 as floats.
inline std::vector<float> decode(const std::vector<char>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], &bytes[i * 4], 4);
    } else {
      BFloat16 b;
      std::memcpy(&b, &bytes[i * 2], 2);
      values[i] = to_float(b);
    }
  }
  return values;
}

}  // namespace volley::ops
