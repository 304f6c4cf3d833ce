// Protects, on a GPU: values against an fp64 oracle; that a row's bits depend on the row alone; gathers and work in
// place.
#include <cmath>

#include "ops/device_for_test.h"
#include "ops/embedding/embedding.h"
#include "ops/norm/norm.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr double kRound = 0x1p-24;

TEST(RmsNormCuda, MatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 3;
  for (int64_t h : {1, 3, 31, 512, 513, 1000, 2048, 2052, 4096, 5120, 12288}) {
    const std::vector<float> x = normal_values(rows * h, 1), weight = normal_values(h, 2);
    const DeviceTensor x_device(device, x), weight_device(device, weight);
    const DeviceTensor y(device, rows * h * 4), rounded(device, rows * h * 2);
    const TensorView from = x_device.view(DType::kF32, {rows, h}), w = weight_device.view(DType::kF32, {h});
    rms_norm(device.stream(), from, w, 1e-6f, {}, y.view(DType::kF32, {rows, h}));
    rms_norm(device.stream(), from, w, 1e-6f, {}, rounded.view(DType::kBF16, {rows, h}));
    const std::vector<float> got = y.read<float>();
    const std::vector<BFloat16> got_rounded = rounded.read<BFloat16>();
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < h; ++i) squares += static_cast<double>(x[r * h + i]) * x[r * h + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(h) + 1e-6f);
      for (int64_t i = 0; i < h; ++i) {
        // The sum of squares errs by less than h roundings, which the root halves; six more for the rest.
        const double want = x[r * h + i] * scale * weight[i];
        ASSERT_NEAR(got[r * h + i], want, std::fabs(want) * (h / 2.0 + 6) * kRound) << "h " << h << " column " << i;
        ASSERT_EQ(got_rounded[r * h + i].bits, to_bfloat16(got[r * h + i]).bits);
      }
    }
  }
}

void check_rows(Device& device, int64_t h) {
  const int64_t rows = 150;
  const std::vector<int32_t> order = {149, 0, 0, 77};
  const std::vector<float> values = normal_values(rows * h, 1);
  const DeviceTensor x(device, values), weight(device, normal_values(h, 2)), index(device, order);
  const DeviceTensor y(device, order.size() * h * 4), alone(device, h * 4);
  const TensorView all = x.view(DType::kF32, {rows, h}), w = weight.view(DType::kF32, {h});
  rms_norm(device.stream(), all, w, 1e-5f, index.view(DType::kI32, {4}), y.view(DType::kF32, {4, h}));
  const std::vector<float> gathered = y.read<float>();
  std::vector<std::vector<float>> single;
  for (int32_t row : order) {
    rms_norm(device.stream(), all.rows(row, 1), w, 1e-5f, {}, alone.view(DType::kF32, {1, h}));
    single.push_back(alone.read<float>());
  }
  rms_norm(device.stream(), all, w, 1e-5f, {}, all);
  const std::vector<float> in_place = x.read<float>();
  for (size_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(std::memcmp(&gathered[i * h], single[i].data(), h * 4), 0) << i;
    ASSERT_EQ(std::memcmp(&in_place[order[i] * h], single[i].data(), h * 4), 0) << i;
  }
}

TEST(RmsNormCuda, RowsAreIndependentGatheredAndInPlace) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const int64_t h : {771, 1536}) check_rows(device, h);
}

// The copy of x that a drafter reads is what capture_feature() makes, and changes nothing of y.
TEST(RmsNormCuda, CopiesFeaturesIntoTheirBlockAlone) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const int64_t rows = 5;
  for (const int64_t h : {771, 1536, 4096, 8192}) {
    const DeviceTensor x(device, normal_values(rows * h, 1)), weight(device, normal_values(h, 2));
    const DeviceTensor y(device, rows * h * 4), plain(device, rows * h * 4);
    const TensorView from = x.view(DType::kF32, {rows, h}), w = weight.view(DType::kF32, {h});
    rms_norm(device.stream(), from, w, 1e-5f, {}, plain.view(DType::kF32, {rows, h}));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const int64_t bytes = rows * 3 * h * static_cast<int64_t>(dtype_size(dtype));
      const DeviceTensor got(device, bytes), want(device, bytes);
      rms_norm(device.stream(), from, w, 1e-5f, {}, y.view(DType::kF32, {rows, h}),
               {got.view(dtype, {rows, 3 * h}), 1});
      capture_feature(device.stream(), from, h, want.view(dtype, {rows, 3 * h}));
      EXPECT_EQ(got.read<uint8_t>(), want.read<uint8_t>()) << h;
      EXPECT_EQ(y.read<uint32_t>(), plain.read<uint32_t>()) << h;
    }
  }
}

}  // namespace
}  // namespace volley::ops
