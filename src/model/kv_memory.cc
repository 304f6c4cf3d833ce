#include "model/kv_memory.h"

namespace volley::model {
namespace {

int64_t layer_bytes(const KvShape& shape, int32_t page_size, DType dtype) {
  return ops::kv_layer_bytes(page_size, shape.kv_heads, shape.head_dim, dtype);
}

}  // namespace

std::vector<KvShape> kv_shapes(const Decoder& spec) {
  std::vector<KvShape> shapes;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (const Attention* a = spec.attention(i)) shapes.push_back({a->kv_heads, a->head_dim});
  }
  return shapes;
}

int64_t kv_page_bytes(std::span<const KvShape> layers, int32_t page_size, DType dtype) {
  int64_t bytes = 0;
  for (const KvShape& shape : layers) bytes += layer_bytes(shape, page_size, dtype);
  return bytes;
}

Result<std::unique_ptr<KvMemory>> KvMemory::allocate(Device& device, std::span<const KvShape> layers, int32_t page_size,
                                                     int64_t pages, DType dtype) {
  const int64_t page_bytes = kv_page_bytes(layers, page_size, dtype);
  std::unique_ptr<KvMemory> memory(new KvMemory);
  VOLLEY_ASSIGN(memory->buffer_, device.allocate(static_cast<size_t>((pages + 1) * page_bytes)));
  memory->pages_ = pages;
  memory->page_size_ = page_size;
  auto* next = static_cast<std::byte*>(memory->buffer_.data());
  for (const KvShape& shape : layers) {
    memory->layers_.push_back({next, page_bytes, page_size, shape.kv_heads, shape.head_dim, dtype});
    next += layer_bytes(shape, page_size, dtype);
  }
  return memory;
}

}  // namespace volley::model
