#include "engine/queue_places.h"

namespace volley::engine {

size_t QueuePlaces::of(const std::string& tenant) const {
  const auto found = of_.find(tenant);
  return found != of_.end() ? found->second : 0;
}

void QueuePlaces::add(const std::string& tenant, size_t requests) {
  if (!tenant.empty()) of_[tenant] += requests;
  all_ += requests;
}

void QueuePlaces::remove(const std::string& tenant) {
  if (const auto found = of_.find(tenant); found != of_.end()) --found->second;
  --all_;
}

void QueuePlaces::add(const QueuePlaces& other) {
  all_ += other.all_;
  for (const auto& [tenant, requests] : other.of_) of_[tenant] += requests;
}

Status QueuePlaces::check(const std::string& tenant, size_t most) const {
  const std::string later = ": try again later.";
  if (all_ >= most) {
    return resource_exhausted("The queue is full (" + std::to_string(all_) + " requests wait)" + later);
  }
  const size_t own = of(tenant);
  if (own > 0 && own >= kShare * (most - all_)) {
    return resource_exhausted("The queue is nearly full, and " + std::to_string(own) + " of the " +
                              std::to_string(all_) + " requests that wait are yours" + later);
  }
  return {};
}

}  // namespace volley::engine
