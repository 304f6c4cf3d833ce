// Helpers of every CUDA source file: checked calls and one way to launch a kernel. Only .cu files and the CUDA parts of
// device/ include this.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "device/device.h"
#include "device/fault.h"

// A CUDA call that can fail only by a bug of ours, or by a fault of the device that cannot be repaired: DeviceFault.
#define VOLLEY_CUDA_CHECK(call)                                                                            \
  do {                                                                                                     \
    const cudaError_t volley_error = (call);                                                               \
    if (volley_error != cudaSuccess) ::volley::cuda::throw_fault(__FILE__, __LINE__, #call, volley_error); \
  } while (0)

namespace volley::cuda {

[[noreturn]] inline void throw_fault(const char* file, int line, const char* call, cudaError_t error) {
  throw DeviceFault(std::string("The GPU failed: ") + cudaGetErrorString(error) + " (" + call + ", " + file + ":" +
                    std::to_string(line) + ").");
}

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

// The size of a grid or of a block.
inline dim3 dims(int64_t x, int64_t y = 1, int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;     // blocks of a cluster, along x
  // Programmatic dependent launch: the kernel may start while its predecessor runs. It must execute griddepcontrol.wait
  // before it touches what the predecessor reads or writes, in every block.
  bool early = false;
};

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& how, const Stream& stream, Arguments&&... arguments) {
  if (stream.dry()) return stream.skip_launch();
  cudaLaunchConfig_t config = {};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = native(stream);
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (how.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = how.cluster;
    a.val.clusterDim.y = 1;
    a.val.clusterDim.z = 1;
  }
  // GPUs before Hopper would refuse the attribute. There the kernels' waits do nothing, and a kernel starts when its
  // predecessor has ended.
  if (how.early && stream.gpu().at_least(90)) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  // From 48 KB on, including the kernel's static shared memory, of which no kernel has 32 KB.
  if (how.shared_bytes > 16 << 10) {
    VOLLEY_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(how.shared_bytes)));
  }
  VOLLEY_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace volley::cuda
