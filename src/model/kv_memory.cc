#include "model/kv_memory.h"

namespace volley::model {
namespace {

int64_t layer_bytes(const DecoderSpec& spec, int32_t page_size, DType dtype) {
  return ops::kv_layer_bytes(page_size, spec.kv_heads, spec.head_dim, dtype);
}

}  // namespace

int64_t kv_page_bytes(const DecoderSpec& target, const DecoderSpec* draft, int32_t page_size, DType dtype) {
  int64_t bytes = layer_bytes(target, page_size, dtype) * static_cast<int64_t>(target.layers.size());
  if (draft != nullptr) bytes += layer_bytes(*draft, page_size, dtype) * static_cast<int64_t>(draft->layers.size());
  return bytes;
}

Result<std::unique_ptr<KvMemory>> KvMemory::allocate(Device& device, const DecoderSpec& target,
                                                     const DecoderSpec* draft, int32_t page_size, int64_t pages,
                                                     DType dtype) {
  const int64_t page_bytes = kv_page_bytes(target, draft, page_size, dtype);
  std::unique_ptr<KvMemory> memory(new KvMemory);
  VOLLEY_ASSIGN(memory->buffer_, device.allocate(static_cast<size_t>((pages + 1) * page_bytes)));
  memory->pages_ = pages;
  memory->page_size_ = page_size;
  auto* next = static_cast<std::byte*>(memory->buffer_.data());
  const auto lay_out = [&](const DecoderSpec& spec, std::vector<ops::KvLayer>& layers) {
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      layers.push_back({next, page_bytes, page_size, spec.kv_heads, spec.head_dim, dtype});
      next += layer_bytes(spec, page_size, dtype);
    }
  };
  lay_out(target, memory->target_);
  if (draft != nullptr) lay_out(*draft, memory->draft_);
  return memory;
}

}  // namespace volley::model
