// For tests of faults: a hook that the pool's parallel regions call before they begin, on the thread that begins them.
#pragma once

#include <functional>

namespace volley {

// Holds for all pools. The hook may throw, and the region then does nothing. Null: no hook. The hook is borrowed until
// the next call. Regions that run while it changes may call either.
void set_work_hook(const std::function<void()>* hook);

}  // namespace volley
