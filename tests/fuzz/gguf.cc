// GGUF files: whatever their content, no tensor and no part of one lies outside the file, and the metadata become JSON
// or an error.
#include <span>

#include "fuzz.h"
#include "gguf/architecture.h"
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
  const auto architecture = gguf::architecture_of(file);
  constexpr int64_t kMostExperts = 64;  // more of them cost time and nothing else
  for (const gguf::Tensor& tensor : file.header().tensors()) {
    if (!architecture.ok() || (tensor.shape.size() == 3 && tensor.shape[0] > kMostExperts)) continue;
    const auto places = gguf::places_of(file, **architecture, tensor);
    if (!places.ok()) continue;
    for (const gguf::Place& place : *places) {
      fuzz::require(tensor.begin <= place.begin && place.begin <= place.end && place.end <= tensor.end);
      const int64_t rows = tensor.shape.front(), last = place.first_row + place.shape.front() - 1;
      fuzz::require(tensor.shape.size() > 2 || (place.rows(place.first_row) < rows && place.rows(last) < rows));
    }
  }
  (void)gguf::config_json(file);
  gguf::generation_config_json(file);
  (void)gguf::tokenizer_json(file);
  gguf::tokenizer_config_json(file);
  return 0;
}
