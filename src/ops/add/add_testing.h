// What the tests of sums share, for a CPU and for a GPU.
#pragma once

#include <gtest/gtest.h>

#include "ops/add/add.h"
#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {

// A sum of two has one right result.
inline void check_sums(Device& device) {
  for (const int64_t count : {1, 255, 8192, 50'001}) {
    const std::vector<float> x = normal_values(count, 1), y = normal_values(count, 2);
    const DeviceTensor from(device, x), to(device, y);
    const TensorView x_view = from.view(DType::kF32, {count}), y_view = to.view(DType::kF32, {1, count});
    add(device.stream(), x_view, y_view);
    const std::vector<float> got = to.read<float>();
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(got[i], static_cast<float>(double{x[i]} + double{y[i]})) << "element " << i << " of " << count;
    }
    copy(device.stream(), x_view, y_view);
    ASSERT_EQ(to.read<float>(), x);
  }
  add(device.stream(), TensorView(nullptr, DType::kF32, {0, 16}), TensorView(nullptr, DType::kF32, {0, 16}));
}

}  // namespace volley::ops
