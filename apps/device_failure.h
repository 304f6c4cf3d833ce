// Ends the process after the device failed or hung. The engine's destructor would wait for a step that never ends, so
// the process ends without it. Threads: any.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "apps/console.h"

namespace volley::apps {

class DeviceFailure {
 public:
  explicit DeviceFailure(Console* console) : console_(*console) {}
  DeviceFailure(const DeviceFailure&) = delete;
  DeviceFailure& operator=(const DeviceFailure&) = delete;

  // Called with the failure on an engine's thread, unless leave() comes before. The handler must not call this object.
  void set_handler(std::function<void(const std::string&)> handler);

  // For EngineOptions::on_device_failure: keeps the failure. This must outlive the engine.
  void operator()(const std::string& failure);
  bool happened() const;

  // Call it when all output is written, right before the engine is destroyed. If the device has failed, or fails during
  // the destruction, it prints the failure and ends the process with kExitDevice.
  void leave();

 private:
  [[noreturn]] void end_process() const;

  Console& console_;
  mutable std::mutex mutex_;
  std::function<void(const std::string&)> handler_;  // guarded by mutex_, like all below
  std::string failure_;                              // empty: no failure
  bool leaving_ = false;
};

}  // namespace volley::apps
