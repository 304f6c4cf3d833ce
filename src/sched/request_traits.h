// How the scheduler is to treat one request, beside its tokens.
#pragma once

namespace volley::sched {

struct RequestTraits {
  bool speculation = true;    // false: nothing is drafted for it
  bool reuses_prefix = true;  // false: all of its tokens are computed, though the prefix tree may have them
};

}  // namespace volley::sched
