// The target's weights where several replicas compute from the same memory: the first that asks loads them, and they
// stay while somebody has them. Threads: any.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "model/network.h"

namespace volley::engine {

class SharedTarget {
 public:
  // load: Result<std::unique_ptr<model::Network>>(), of the same models for everybody.
  template <typename Load>
  Result<std::shared_ptr<const model::Network>> get(const Load& load) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const model::Network> target = target_.lock();
    if (target == nullptr) {
      VOLLEY_ASSIGN(target, load());
      target_ = target;
    }
    return target;
  }

 private:
  std::mutex mutex_;  // held while loading
  std::weak_ptr<const model::Network> target_;
};

}  // namespace volley::engine
