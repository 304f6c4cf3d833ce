#include "engine/start/start_error.h"

#include <system_error>

#include "device/fault.h"

namespace volley::engine {

Error start_error() {
  try {
    throw;
  } catch (const DeviceFault& fault) {
    return {ErrorCode::kUnavailable, fault.what()};
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return internal_error(std::string("The system refuses what the engine needs: ") + error.what() + ".");
    }
    return resource_exhausted("The system gives this process no more threads: lower --threads, or raise its limit.");
  }
}

}  // namespace volley::engine
