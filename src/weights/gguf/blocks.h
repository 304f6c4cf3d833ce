// The values of a GGUF file's blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/header.h"

namespace volley::weights {

// Widens `count` blocks of a type that is built: facts_of(type).values floats each, as gguf-py does, bit for bit.
void widen_blocks(gguf::TensorType type, const std::byte* blocks, int64_t count, float* values);

}  // namespace volley::weights
