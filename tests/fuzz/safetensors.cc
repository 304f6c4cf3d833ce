// Headers of weight files: whatever they say, no tensor lies outside the file.
#include <span>

#include "fuzz.h"
#include "weights/safetensors_header.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto header = weights::parse_safetensors_header(file, "file");
  if (!header.ok()) return 0;
  for (const auto& [name, entry] : *header) fuzz::require(entry.begin <= entry.end && entry.end <= size);
  return 0;
}
