// The process that has the device for another one (EngineOptions::device_command): `volley --compute-for DESCRIPTOR`,
// which users do not call.
#pragma once

#include <optional>

namespace volley::apps {

inline constexpr const char* kComputeFor = "--compute-for";

// Its descriptor; nothing for any other process.
std::optional<int> compute_for(int argc, const char* const* argv);
int run_compute(int descriptor);

}  // namespace volley::apps
