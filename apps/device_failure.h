// A device that failed or hangs, and the end of the process: the engine's destructor waits for a step that never ends,
// so the process goes without it. Threads: any.
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

  // Called with the failure, on a thread of the engine's, unless leave() comes before. Must not call anything here.
  void set_handler(std::function<void(const std::string&)> handler);

  // EngineOptions::on_device_failure: keeps it. This must outlive the engine.
  void operator()(const std::string& failure);
  bool happened() const;

  // When everything is written, and the engine goes next. Where the device has failed, or does while the engine goes,
  // says so and ends the process with kExitDevice.
  void leave();

 private:
  [[noreturn]] void end_process() const;

  Console& console_;
  mutable std::mutex mutex_;
  std::function<void(const std::string&)> handler_;  // guarded by mutex_, as all below
  std::string failure_;                              // empty: there was none
  bool leaving_ = false;
};

}  // namespace volley::apps
