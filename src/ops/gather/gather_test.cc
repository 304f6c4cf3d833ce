#include "ops/gather/gather.h"

#include <gtest/gtest.h>

#include <vector>

namespace volley::ops {
namespace {

// Any order, repeats, small and large enough for the threads: each row's bytes are the source row's.
TEST(GatherRows, CopiesTheRowsNamed) {
  auto device = *make_cpu_device(2);
  for (const int64_t width : {3, 4096}) {
    const int64_t rows = 37, n = 50;
    std::vector<float> x(rows * width), y(n * width, -1.0f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    std::vector<int32_t> index(n);
    for (int64_t i = 0; i < n; ++i) index[i] = static_cast<int32_t>(i * 23 % rows);
    gather_rows(device->stream(), {x.data(), DType::kF32, {rows, width}}, {index.data(), DType::kI32, {n}},
                {y.data(), DType::kF32, {n, width}});
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < width; ++j) ASSERT_EQ(y[i * width + j], x[index[i] * width + j]);
    }
  }
}

TEST(GatherRows, RefusesARowThatDoesNotExist) {
  auto device = *make_cpu_device(1);
  float x[2] = {}, y[1] = {};
  int32_t index[1] = {2};
  EXPECT_DEATH(
      gather_rows(device->stream(), {x, DType::kF32, {2, 1}}, {index, DType::kI32, {1}}, {y, DType::kF32, {1, 1}}),
      "CHECK failed");
}

}  // namespace
}  // namespace volley::ops
