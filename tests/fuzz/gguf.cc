// GGUF files: whatever their content, no tensor lies outside the file, and the metadata become JSON or an error.
#include <span>

#include "fuzz.h"
#include "gguf/config.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  auto header = gguf::Header::parse(bytes, size, "file");
  if (!header.ok()) return 0;
  fuzz::require(header->has_value());
  for (const gguf::Tensor& tensor : (*header)->tensors()) {
    fuzz::require(tensor.begin <= tensor.end && tensor.end <= size);
  }
  gguf::File file;
  file.parts.push_back({"file", **std::move(header)});
  (void)gguf::config_json(file);
  gguf::generation_config_json(file);
  (void)gguf::tokenizer_json(file);
  gguf::tokenizer_config_json(file);
  return 0;
}
