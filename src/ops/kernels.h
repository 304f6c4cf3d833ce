// Which kernels an operation has, by device. Its private header NAME_kernels.h declares a table of functions,
//   struct NameKernels {
//     void (*name)(Stream&, ...);
//     static const NameKernels kCpu, kCuda;
//   };
// of which NAME_cpu.cc and NAME_cuda.cu define one each. The dispatch file NAME.cc checks arguments and calls the
// table's functions, which need not check them again. Private to this folder, as the tables are.
#pragma once

#include "device/device.h"

namespace volley::ops {

#ifdef VOLLEY_CUDA
inline constexpr bool kHasCudaKernels = true;
#else
inline constexpr bool kHasCudaKernels = false;
#endif

template <typename Kernels>
const Kernels& kernels_on(DeviceKind device) {
  if constexpr (kHasCudaKernels) {
    if (device == DeviceKind::kCuda) return Kernels::kCuda;
  }
  VOLLEY_CHECK_MSG(device == DeviceKind::kCpu, "this build has no CUDA kernels");
  return Kernels::kCpu;
}

template <typename Kernels>
const Kernels& kernels_on(const Stream& stream) {
  return kernels_on<Kernels>(stream.kind());
}

}  // namespace volley::ops
