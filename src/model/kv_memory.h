// The memory of the one cache group that target and drafter share: a page holds page_size positions of every layer of
// both, so one page table serves both and a prefix hit brings the drafter's context along. Threads: immutable; what the
// pages hold belongs to the stream's order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "model/spec.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::model {

// What one layer keeps of a position.
struct KvShape {
  int32_t kv_heads = 0, head_dim = 0;
};
// The layers that keep K and V, in order.
std::vector<KvShape> kv_shapes(const Decoder& spec);

class KvMemory {
 public:
  // layers: those of the target, then those of the drafter, if any. dtype: kBF16 or kF32. The memory is taken from the
  // device as `pages` whole pages and the scrap page: kResourceExhausted where it has no room.
  static Result<std::unique_ptr<KvMemory>> allocate(Device& device, std::span<const KvShape> layers, int32_t page_size,
                                                    int64_t pages, DType dtype);

  // n layers from `begin` on, in the order of allocate().
  std::span<const ops::KvLayer> layers(size_t begin, size_t n) const {
    return std::span<const ops::KvLayer>(layers_).subspan(begin, n);
  }
  int64_t pages() const { return pages_; }
  // One page more, for rows that mean nothing: it never belongs to a sequence.
  PageId scrap_page() const { return PageId(static_cast<int32_t>(pages_)); }
  int32_t page_size() const { return page_size_; }

 private:
  KvMemory() = default;
  Buffer buffer_;
  std::vector<ops::KvLayer> layers_;
  int64_t pages_ = 0;
  int32_t page_size_ = 0;
};

// Bytes that a page holds of these layers.
int64_t kv_page_bytes(std::span<const KvShape> layers, int32_t page_size, DType dtype);

}  // namespace volley::model
