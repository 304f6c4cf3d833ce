#include "spec/mask_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "device/fault.h"

namespace volley::spec {

void MaskExchange::publish(std::span<const uint32_t> words) {
  if (on_publish_) on_publish_(words);
  {
    const std::lock_guard lock(mutex_);
    words_.assign(words.begin(), words.end());
    ++published_;
  }
  changed_.notify_all();
}

void MaskExchange::take(uint64_t n, std::span<uint32_t> words) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || published_ >= n; });
  if (stopped_) throw DeviceFault("Another rank of the tensor-parallel group failed while masks were awaited.");
  VOLLEY_CHECK_EQ(published_, n);
  if (words_.size() != words.size()) throw DeviceFault("Ranks of the tensor-parallel group are at different steps.");
  std::ranges::copy(words_, words.begin());
}

void MaskExchange::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace volley::spec
