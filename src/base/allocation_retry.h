// For what must not be left out where memory is short for a moment.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace volley {

// The patience of those who end the process at last.
inline constexpr std::chrono::seconds kMemoryPatience{1};

// Calls `call`, and again from its begin while it throws std::bad_alloc, for so long. False: there was no memory.
template <typename Call>
bool retry_allocation(const Call& call, std::chrono::milliseconds patience = std::chrono::milliseconds::max()) {
  constexpr std::chrono::milliseconds kPause{1};
  for (; patience > kPause; patience -= kPause, std::this_thread::sleep_for(kPause)) {
    try {
      call();
      return true;
    } catch (const std::bad_alloc&) {
      continue;
    }
  }
  return false;
}

}  // namespace volley
