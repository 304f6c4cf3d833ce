// For the tests of this folder: safetensors files, good and bad.
#pragma once

#include <cstdint>
#include <string>

#include "base/temp_folder_for_test.h"

namespace volley::weights {

// The bytes of a file with this JSON header (taken as it is) and this data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + header + data;
}

}  // namespace volley::weights
