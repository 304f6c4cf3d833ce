// Shapes in messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace volley::weights {

// "[2, 3]"
inline std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace volley::weights
