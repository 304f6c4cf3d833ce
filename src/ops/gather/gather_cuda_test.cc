// Protects, on a GPU: that picked rows are copied byte for byte, for widths that suit every word size.
#include "ops/device_for_test.h"
#include "ops/gather/gather.h"

namespace volley::ops {
namespace {

TEST(GatherCuda, CopiesRows) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 40;
  const std::vector<int32_t> index = {39, 0, 0, 17, 5};
  const auto picked = static_cast<int64_t>(index.size());
  for (const auto& [dtype, width] :
       {std::pair<DType, int64_t>{DType::kF32, 4096}, {DType::kBF16, 77}, {DType::kU8, 13}}) {
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

}  // namespace
}  // namespace volley::ops
