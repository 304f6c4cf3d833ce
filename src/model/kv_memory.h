// The memory of the one cache group that target and drafter share: a page holds page_size positions of every layer of
// both, so one page table serves both and a prefix hit brings the drafter's context along. Threads: immutable; what the
// pages hold belongs to the stream's order.
#pragma once

#include <memory>

#include "base/ids.h"
#include "model/spec.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::model {

class KvMemory {
 public:
  // draft may be null. dtype: kBF16 or kF32. The memory is taken from the device as `pages` whole pages
  // and the scrap page: kResourceExhausted where it has no room.
  static Result<std::unique_ptr<KvMemory>> allocate(Device& device, const DecoderSpec& target, const DecoderSpec* draft,
                                                    int32_t page_size, int64_t pages, DType dtype);

  const ops::KvLayer& target_layer(int i) const { return target_[i]; }
  const ops::KvLayer& draft_layer(int i) const { return draft_[i]; }
  int64_t pages() const { return pages_; }
  // One page more, for rows that mean nothing: it never belongs to a sequence.
  PageId scrap_page() const { return PageId(static_cast<int32_t>(pages_)); }
  int32_t page_size() const { return page_size_; }

 private:
  KvMemory() = default;
  Buffer buffer_;
  std::vector<ops::KvLayer> target_, draft_;
  int64_t pages_ = 0;
  int32_t page_size_ = 0;
};

// Bytes of one page of the group. draft may be null.
int64_t kv_page_bytes(const DecoderSpec& target, const DecoderSpec* draft, int32_t page_size, DType dtype);

}  // namespace volley::model
