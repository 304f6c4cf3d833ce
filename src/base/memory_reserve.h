// Address space that is kept back for the moment when memory runs out: to tell the client, to unwind and to destroy
// takes some, and a destructor that gets none ends the process.
#pragma once

#include <cstddef>

namespace volley {

// The most that is kept: untouched, so that it takes no memory until it is needed.
inline constexpr size_t kMemoryReserveBytes = size_t{64} << 20;

// Installs a handler of `new` that gives the reserve back at the first allocation that fails, which is then tried
// again. With none left, allocations throw std::bad_alloc as ever. Threads share as many heaps as there are cores. A
// process with a limit of address space keeps back a 16th of the limit at most, and its threads share one heap. Once
// per process, early: a thread that has allocated keeps its heap. Other handlers of `new` are replaced.
void keep_memory_reserve();

// False: the reserve was given back, and there is no room to take a 16th of it again. Where none was ever kept: true.
// Any thread; costs one load unless the reserve is gone.
bool has_memory_reserve();

}  // namespace volley
