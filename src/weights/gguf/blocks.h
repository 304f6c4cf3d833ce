// The values of a GGUF file's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/dtype.h"
#include "gguf/header.h"

namespace volley::weights {

// How the values of a type's blocks are made of integers: (code - zero) * scale, or code * scale + minimum, of the
// group. In fp32 the product is exact, so that the value is rounded at most once.
struct IntegerBlocks {
  DType code;     // kI4, kI6: from 0 on; kI8
  int32_t group;  // values that share a scale
  bool minimums;
  int zero = 0;         // of types without minimums
  bool halves = false;  // scales and minimums are values of fp16
};
// No value for plain types and kMXFP4.
std::optional<IntegerBlocks> integers_of(gguf::TensorType type);

inline constexpr int64_t kMostBlockValues = 256, kMostBlockGroups = 16;
struct Integers {
  uint8_t* codes;            // one for each value, as its bits
  float *scales, *minimums;  // one for each group; minimums may be null where the type has none
};
// Reads `count` blocks. REQUIRES: integers_of(type) has a value.
void read_integers(gguf::TensorType type, const std::byte* blocks, int64_t count, const Integers& to);

// Widens `count` blocks of a type that is built: facts_of(type).values floats each, as gguf-py does, bit for bit.
void widen_blocks(gguf::TensorType type, const std::byte* blocks, int64_t count, float* values);

}  // namespace volley::weights
