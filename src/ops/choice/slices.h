// A row cut into slices of the vocabulary. The cuts depend on the vocabulary alone; whether slices run one after
// another or on several threads changes no result, for every kernel's result over slices is merged exactly (kernels.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/thread_pool.h"

namespace volley::ops::choice {

class Slices {
 public:
  // 16 KiB of logits: a slice stays in the first cache level between the steps that read it.
  static constexpr int32_t kTokens = 4096;
  static constexpr int32_t kMax = (1 << 19) / kTokens;

  // pool: null runs the slices in order on the calling thread.
  Slices(int32_t vocab, ThreadPool* pool) : vocab_(vocab), pool_(pool) {}

  int32_t count() const { return (vocab_ + kTokens - 1) / kTokens; }
  int32_t vocab() const { return vocab_; }
  bool parallel() const { return pool_ != nullptr; }

  // f(slice, begin, end) for every slice of the tokens.
  template <typename F>
  void each(F&& f) const {
    const auto one = [&](int64_t slice, int /*worker*/) {
      const int32_t begin = static_cast<int32_t>(slice) * kTokens;
      f(static_cast<int32_t>(slice), begin, std::min(begin + kTokens, vocab_));
    };
    if (pool_ != nullptr) {
      pool_->parallel_for(count(), one);
    } else {
      for (int32_t slice = 0; slice < count(); ++slice) one(slice, 0);
    }
  }

 private:
  int32_t vocab_;
  ThreadPool* pool_;
};

}  // namespace volley::ops::choice
