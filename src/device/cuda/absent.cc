// The CUDA device of a build without CUDA.
#include "device/device.h"
#include "device/kernel_times.h"
#include "device/probe.h"

namespace volley {

namespace {

Error absent() {
  return unimplemented("This program was built without CUDA: build it with `make cuda`, or use --device cpu.");
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(int) {
  return absent();
}

Result<GpuFacts> examine_cuda_device(int) {
  return absent();
}

void release_cuda_device(int) {}

Result<double> measure_gpu_read(int, int64_t) {
  return absent();
}

Status start_kernel_times() {
  return absent();
}

std::vector<KernelRun> take_kernel_times() {
  return {};
}

}  // namespace volley
