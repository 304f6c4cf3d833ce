// Protects, on the CPU and on a GPU: picked rows are copied byte for byte, for widths that suit every word size.
#include "ops/gather/gather.h"

#include "ops/device_for_test.h"

namespace volley::ops {
namespace {

// Any order, repeats, small and large enough for the threads.
DEVICE_TEST(GatherRows, CopiesTheRowsNamed) {
  DEVICE_UNDER_TEST;
  const int64_t rows = 40;
  const int64_t picked = 50;
  std::vector<int32_t> index;
  for (int32_t i = 0; i < picked; ++i) index.push_back(i * 23 % 39);
  for (const auto& [dtype, width] :
       {std::pair<DType, int64_t>{DType::kF32, 4096}, {DType::kF32, 3}, {DType::kBF16, 77}, {DType::kU8, 13}}) {
    const size_t row_bytes = width * dtype_size(dtype);
    std::vector<uint8_t> x(rows * row_bytes);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 31 + i / 251);
    const DeviceTensor from(device, x), order(device, index), y(device, picked * row_bytes);
    gather_rows(device.stream(), from.view(dtype, {rows, width}), order.view(DType::kI32, {picked}),
                y.view(dtype, {picked, width}));
    const std::vector<uint8_t> got = y.read<uint8_t>();
    for (int64_t i = 0; i < picked; ++i) {
      ASSERT_EQ(std::memcmp(&got[i * row_bytes], &x[index[i] * row_bytes], row_bytes), 0) << i;
    }
  }
}

#ifndef VOLLEY_OPS_TEST_CUDA
TEST(GatherRows, RefusesARowThatDoesNotExist) {
  auto device = *make_cpu_device(1);
  float x[2] = {}, y[1] = {};
  int32_t index[1] = {2};
  EXPECT_DEATH(
      gather_rows(device->stream(), {x, DType::kF32, {2, 1}}, {index, DType::kI32, {1}}, {y, DType::kF32, {1, 1}}),
      "CHECK failed");
}

#endif

}  // namespace
}  // namespace volley::ops
