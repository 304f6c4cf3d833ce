#include "apps/device_failure.h"

#include <cstdlib>
#include <utility>

#include "apps/exit_codes.h"
#include "apps/standard_streams.h"

namespace volley::apps {

void DeviceFailure::set_handler(std::function<void(const std::string&)> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void DeviceFailure::operator()(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  if (leaving_) end_process();
  if (handler_) handler_(failure);
}

bool DeviceFailure::happened() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

// Requests hear of a failure before this object does, so the command may come here first.
void DeviceFailure::leave() {
  (void)flush_standard_output();  // the commands that write have checked their output
  const std::lock_guard lock(mutex_);
  leaving_ = true;
  if (!failure_.empty()) end_process();
}

void DeviceFailure::end_process() const {
  console_.error(failure_);
  std::_Exit(kExitDevice);
}

}  // namespace volley::apps
