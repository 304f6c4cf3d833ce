// The target's weights where several replicas compute from the same memory: the first that asks loads them, and they
// stay while somebody has them. A replica that faults may have done so because of them, so it starts over with others:
// the first that does loads them anew, and those that fault later find these. Threads: any.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "model/network.h"

namespace volley::engine {

class SharedTarget {
 public:
  using Target = std::shared_ptr<const model::Network>;

  // load: Result<std::unique_ptr<model::Network>>(), of the same models for everybody. fits: whether there is memory
  // for the replica with weights of its own beside those that others still have. Where not, or where they cannot be
  // loaded, it goes on with these, as a fault has other causes, too.
  template <typename Load>
  Result<Target> get(const Load& load, const std::function<bool()>& fits) {
    const std::lock_guard lock(mutex_);
    Target target = target_.lock();
    if (target != nullptr) return target;
    target = distrusted_.lock();
    if (target == nullptr || fits()) {
      auto loaded = load();
      if (!loaded.ok() && target == nullptr) return loaded.error();
      if (loaded.ok()) {
        target = std::move(*loaded);
        ++loads_;
      }
    }
    target_ = target;
    return target;
  }

  // A replica with this one has faulted, and will ask again.
  void distrust(const Target& target) {
    const std::lock_guard lock(mutex_);
    if (target == nullptr || target_.lock() != target) return;  // another one is there already
    distrusted_ = std::exchange(target_, {});
  }

  int loads() const {  // so far
    const std::lock_guard lock(mutex_);
    return loads_;
  }

 private:
  mutable std::mutex mutex_;                                 // held while loading
  std::weak_ptr<const model::Network> target_, distrusted_;  // guarded by mutex_
  int loads_ = 0;                                            // guarded by mutex_
};

}  // namespace volley::engine
