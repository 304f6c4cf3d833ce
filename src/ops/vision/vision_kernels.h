// The kernels of this folder. Private to it; arguments are checked in vision.cc.
#pragma once

#include "base/host_device.h"
#include "ops/kernels.h"
#include "ops/vision/vision.h"

namespace volley::ops {

struct VisionKernels {
  void (*take_patches)(Stream& stream, TensorView pixels, const PatchGrid& grid, const PatchValues& values,
                       int64_t first, TensorView y);
  void (*add_places)(Stream& stream, TensorView bias, TensorView table, int32_t side, const PatchGrid& grid,
                     int64_t first, TensorView x);
  void (*layer_norm)(Stream& stream, TensorView x, TensorView weight, TensorView bias, float eps, TensorView y,
                     const BiasesAround& around);
  void (*gelu)(Stream& stream, TensorView x, TensorView bias, bool by_tanh);
  void (*narrow_heads)(Stream& stream, TensorView wide, int32_t heads, TensorView narrow);

  static const VisionKernels kCpu, kCuda;
};

// Where one of `n` places lies among `side` with the same corners: at `low` and, by the share `high`, at the next. In
// fp32 and from the nearer end, as torch.linspace() counts.
struct PlaceBetween {
  int low;
  float high;
};
VOLLEY_HOST_DEVICE inline PlaceBetween place_between(int place, int n, int side) {
  const float last = static_cast<float>(side - 1);
  if (n == 1) return {0, 0.0f};
  const float step = last / static_cast<float>(n - 1);
  const float at = place < n / 2 ? step * static_cast<float>(place) : last - step * static_cast<float>(n - 1 - place);
  const int low = static_cast<int>(at);
  return {low, at - static_cast<float>(low)};
}

}  // namespace volley::ops
