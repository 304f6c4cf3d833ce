// For tests of faults: what a pool's parallel regions call before they begin, on the thread that begins them.
#pragma once

#include <functional>

namespace volley {

// Holds for all pools. The hook may throw, and the region then does nothing. Null: nothing. Borrowed until the next
// call. Regions that run while it changes may call either.
void set_work_hook(const std::function<void()>* hook);

}  // namespace volley
