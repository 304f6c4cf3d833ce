// Arithmetic that more than one place needs.
#pragma once

#include <cmath>
#include <cstdint>

namespace volley {

// a / b, rounded up. REQUIRES: a >= 0, b > 0.
constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The next multiple of `unit` from n on. REQUIRES: n >= 0, unit > 0.
constexpr int64_t round_up(int64_t n, int64_t unit) {
  return divide_up(n, unit) * unit;
}

// The probability of these log odds, in the type that they have. T: float or double.
template <typename T>
T sigmoid(T log_odds) {
  return 1 / (1 + std::exp(-log_odds));
}

}  // namespace volley
