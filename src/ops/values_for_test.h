// Inputs of operations' tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace volley::ops {

// Values of a standard normal distribution, the same for the same seed.
inline std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace volley::ops
