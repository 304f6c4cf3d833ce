// Error texts for ranks of a group in which one is gone.
#pragma once

#include <string>

#include "device/fault.h"

namespace volley::comm {

// Another rank has failed or is gone. This error is a consequence; the other rank may know the cause.
class PeerLost : public DeviceFault {
 public:
  using DeviceFault::DeviceFault;
};

// cause: the known cause, or null. what: who or what is gone.
inline std::string gone_sentence(int rank, int ranks, const char* cause = nullptr, const char* what = "Rank") {
  return std::string(what) + " " + std::to_string(rank) + " of " + std::to_string(ranks) + " is gone" +
         (cause == nullptr ? "" : std::string(" (") + cause + ")") + ", so the group cannot go on.";
}

[[noreturn]] inline void throw_gone(int rank, int ranks, const char* cause = nullptr, const char* what = "Rank") {
  throw PeerLost(gone_sentence(rank, ranks, cause, what));
}

}  // namespace volley::comm
