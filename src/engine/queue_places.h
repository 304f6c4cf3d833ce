// Who may wait where the queue has a bound. Arithmetic only.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <map>
#include <string>

namespace volley::engine {

// Requests that wait, and those of each tenant that has a name.
class QueuePlaces {
 public:
  size_t all() const { return all_; }
  size_t of(const std::string& tenant) const;
  void add(const std::string& tenant, size_t requests = 1);
  void add(const QueuePlaces& other);
  void remove(const std::string& tenant);  // one that was added

  // kResourceExhausted: there is no place for one more. All places are for all, but a tenant with a name may wait with
  // at most kShare requests for each place that is free: so whoever asks for little finds one where few others ask for
  // much, and one alone has most_alone(). (Dynamic thresholds: Choudhury and Hahne, 1998.)
  Status check(const std::string& tenant, size_t most) const;
  static constexpr size_t kShare = 7;
  static constexpr size_t most_alone(size_t most) { return (kShare * most + kShare) / (kShare + 1); }

 private:
  size_t all_ = 0;
  std::map<std::string, size_t> of_;
};

}  // namespace volley::engine
