#include "decode/mask_exchange.h"

#include <utility>

#include "base/check.h"
#include "comm/gone.h"
#include "device/fault.h"

namespace volley::decode {

void MaskExchange::publish(std::span<const uint32_t> words) {
  if (on_publish_) on_publish_(words);
  {
    const std::lock_guard lock(mutex_);
    words_ = words;
    ++published_;
  }
  changed_.notify_all();
}

void MaskExchange::publish_kept(std::vector<uint32_t> words) {
  {
    const std::lock_guard lock(mutex_);
    kept_ = std::move(words);
    words_ = kept_;
    ++published_;
  }
  changed_.notify_all();
}

std::span<const uint32_t> MaskExchange::take(uint64_t n, size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || published_ >= n; });
  if (stopped_) throw comm::PeerLost("Another rank of the tensor-parallel group failed while masks were awaited.");
  VOLLEY_CHECK_EQ(published_, n);
  if (words_.size() != count) throw DeviceFault("Ranks of the tensor-parallel group are at different steps.");
  return words_;
}

void MaskExchange::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace volley::decode
