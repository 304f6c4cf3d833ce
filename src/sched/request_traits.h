// How the scheduler is to treat one request, beside its tokens.
#pragma once

#include <cstdint>
#include <string>

namespace volley::sched {

struct RequestTraits {
  bool speculation = true;     // false: nothing is drafted for it
  bool reuses_prefix = true;   // false: all of its tokens are computed, though the prefix tree may have them
  bool shares_prompt = false;  // others with the same prompt come with it
  std::string tenant = {};     // whose share of prompt rows and slots it takes (fair_shares.h)
  uint64_t group = 0;          // within the tenant: requests of one group take one share together; 0: one of its own
  int32_t priority = 0;        // within the tenant: lower is earlier
};

}  // namespace volley::sched
