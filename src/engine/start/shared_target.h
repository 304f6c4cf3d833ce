// The target's weights, shared by replicas of one memory. The first that asks loads them; they stay while a replica
// holds them. Threads: any.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "model/network.h"

namespace volley::engine {

class SharedTarget {
 public:
  using Target = std::shared_ptr<const model::Network>;

  // load: Result<std::unique_ptr<model::Network>>(), of the same models for all callers.
  template <typename Load>
  Result<Target> get(const Load& load) {
    const std::lock_guard lock(mutex_);
    Target target = target_.lock();
    if (target != nullptr) return target;
    auto loaded = load();
    if (!loaded.ok()) return loaded.error();
    target = std::move(*loaded);
    ++loads_;
    target_ = target;
    return target;
  }

  int loads() const {  // so far
    const std::lock_guard lock(mutex_);
    return loads_;
  }

 private:
  mutable std::mutex mutex_;                    // held while loading
  std::weak_ptr<const model::Network> target_;  // guarded by mutex_
  int loads_ = 0;                               // guarded by mutex_
};

}  // namespace volley::engine
