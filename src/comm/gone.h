// What the ranks of a group say when one of them is gone.
#pragma once

#include <string>

#include "device/fault.h"

namespace volley::comm {

// cause: what is known of it, or null. what: is gone.
[[noreturn]] inline void throw_gone(int rank, int ranks, const char* cause = nullptr, const char* what = "Rank") {
  throw DeviceFault(std::string(what) + " " + std::to_string(rank) + " of " + std::to_string(ranks) + " is gone" +
                    (cause == nullptr ? "" : std::string(" (") + cause + ")") + ", so the group cannot go on.");
}

}  // namespace volley::comm
