// The device failed: an illegal access, a launch that it refused, the device itself gone.
#pragma once

#include <stdexcept>

namespace volley {

// Work and memory of the device are lost, and whatever used them can only be destroyed. Thrown wherever a fault may
// show, by launches, copies, fences and waits, because none of them has another way to go on; caught where requests can
// be told, by the engine's thread and Engine::create. what(): a sentence.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace volley
