// The process that has the device for another one (EngineOptions::device_command): `volley --compute-for DESCRIPTOR`,
// which is no user's.
#pragma once

#include <optional>

namespace volley::apps {

inline constexpr const char* kComputeFor = "--compute-for";

// Its descriptor; nothing: the process is another one.
std::optional<int> compute_for(int argc, const char* const* argv);
int run_compute(int descriptor);

}  // namespace volley::apps
