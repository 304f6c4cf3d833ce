// The CUDA device of a build without CUDA.
#include "device/device.h"

namespace volley {

Result<std::unique_ptr<Device>> make_cuda_device(int) {
  return unimplemented("This program was built without CUDA: build it with `make cuda`, or use --device cpu.");
}

}  // namespace volley
