#include "spec/mask_exchange.h"

#include "base/check.h"
#include "device/fault.h"

namespace volley::spec {

void MaskExchange::publish(const uint32_t* words) {
  {
    const std::lock_guard lock(mutex_);
    words_ = words;
    ++published_;
  }
  changed_.notify_all();
}

const uint32_t* MaskExchange::take(uint64_t n) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || published_ >= n; });
  if (stopped_) throw DeviceFault("Another rank of the tensor-parallel group failed while masks were awaited.");
  VOLLEY_CHECK_EQ(published_, n);
  return words_;
}

void MaskExchange::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace volley::spec
