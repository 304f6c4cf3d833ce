// A fault of the device: an illegal access, a refused launch, or a lost device.
#pragma once

#include <stdexcept>

namespace volley {

// The device's work and memory are lost, and objects that used them can only be destroyed. Launches, copies, fences and
// waits throw this, because none of them can continue. The engine's thread and Engine::create catch it, because they
// can report it to requests. what(): a sentence.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace volley
