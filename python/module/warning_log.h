// What the engine warns of while it runs. Its thread writes here instead of calling Python, which would have to wait
// for the interpreter's lock.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace volley::python {

// Any thread. Engines that were made with the options of attach() may outlive it.
class WarningLog {
 public:
  void attach(EngineOptions& options) const {
    options.on_warning = [state = state_](const std::string& warning) {
      const std::lock_guard lock(state->mutex);
      state->warnings.push_back(warning);
    };
  }

  // What has come since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->warnings, {});
  }

 private:
  struct State {
    std::mutex mutex;
    std::vector<std::string> warnings;  // guarded by mutex
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace volley::python
