// How the scheduler treats one request, beside its tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv/layout.h"

namespace volley::sched {

struct RequestTraits {
  bool speculation = true;     // false: no tokens are drafted for it
  bool reuses_prefix = true;   // false: all of its tokens are computed, even if the prefix tree has them
  bool shares_prompt = false;  // other requests with the same prompt arrive with it
  std::string tenant = {};     // the tenant whose share of prompt rows and slots it uses (fair_shares.h)
  uint64_t group = 0;          // within the tenant: requests of one group use one share together; 0: a group of its own
  int32_t priority = 0;        // within the tenant: lower is earlier
  // Tokens [first, second) of the prompt inside which no hit of the prefix cache may end, in order.
  std::vector<std::pair<int32_t, int32_t>> unbroken = {};
  std::vector<kv::CacheKey> prompt_keys = {};  // of the prompt's positions, all of them; empty: they are its tokens
};

}  // namespace volley::sched
