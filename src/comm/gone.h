// What the ranks of a group say when one of them is gone.
#pragma once

#include <string>

#include "device/fault.h"

namespace volley::comm {

// cause: what is known of it, or null.
[[noreturn]] inline void throw_gone(int rank, int ranks, const char* cause = nullptr) {
  throw DeviceFault("Rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " is gone" +
                    (cause == nullptr ? "" : std::string(" (") + cause + ")") + ", so the group cannot go on.");
}

}  // namespace volley::comm
