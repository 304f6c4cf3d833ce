// Bounds the queue, and a tenant's part of it.
#pragma once

#include <volley/result.h>

#include <algorithm>
#include <string>

#include "base/fair_space.h"

namespace volley::engine {

// A tenant may have this many waiting requests for each free place, and always one.
constexpr size_t kQueueShare = 7;

inline FairSpace::Limits queue_limits(int32_t max_queue) {
  return {.total = static_cast<size_t>(max_queue), .share = kQueueShare, .always = 1};
}
// Waiting requests that a tenant may have if there is no other.
constexpr size_t most_places_alone(size_t max_queue) {
  return std::max<size_t>(kQueueShare * max_queue / (kQueueShare + 1), 1);
}

// kResourceExhausted: no place is left for one more. Requests without a tenant share all places.
inline Status check_place(const FairSpace& queued, const std::string& tenant) {
  const FairSpace::Room room = queued.room(tenant);
  if (room == FairSpace::Room::kThere || (room != FairSpace::Room::kNoneForAll && tenant.empty())) return {};
  const std::string all = std::to_string(queued.all()), later = ": try again later.";
  if (room == FairSpace::Room::kNoneForAll) {
    return resource_exhausted("The queue is full (" + all + " requests wait)" + later);
  }
  return resource_exhausted("The queue is nearly full, and " + std::to_string(queued.of(tenant)) + " of the " + all +
                            " requests that wait are yours" + later);
}

}  // namespace volley::engine
