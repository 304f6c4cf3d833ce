// Protects: values against an fp64 oracle, alone and with another rank's part; that a row's bits do not depend on other
// rows; that no other column changes.
#include "ops/wide_norm/wide_norm.h"

#include <cmath>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr int64_t kColumns = 720;
constexpr float kEps = 1e-6f;

DEVICE_TEST(WideNorm, MatchesTheOracle) {
  DEVICE_UNDER_TEST;
  const std::vector<float> q_weight = normal_values(480, 1), k_weight = normal_values(96, 2);
  const DeviceTensor q(device, q_weight), k(device, k_weight);
  const auto run = [&](const std::vector<float>& x, float more, int ranks) {
    const auto rows = static_cast<int64_t>(x.size()) / kColumns;
    const DeviceTensor on_device(device, x);
    const DeviceTensor sums(device, static_cast<size_t>(rows * WideNorm::kSums) * sizeof(float));
    const WideNorm norm = {.x = on_device.view(DType::kF32, {rows, kColumns}),
                           .parts = {{8, q.view(DType::kF32, {480})}, {500, k.view(DType::kF32, {96})}},
                           .sums = sums.view(DType::kF32, {rows, WideNorm::kSums}),
                           .eps = kEps};
    sum_squares(device.stream(), norm);
    std::vector<float> all = sums.read<float>();
    for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(all[r * WideNorm::kSums + 2] + all[r * WideNorm::kSums + 3], 0);
    for (float& sum : all) sum += more;
    device.upload(norm.sums.data, all.data(), all.size() * sizeof(float));
    norm_by_sums(device.stream(), norm, ranks);
    return on_device.read<float>();
  };
  const std::vector<float> x = normal_values(5 * kColumns, 3);
  for (const int ranks : {1, 2}) {
    const float more = ranks == 1 ? 0.0f : 300.0f;
    const std::vector<float> y = run(x, more, ranks);
    for (int64_t i = 0; i < 5 * kColumns; ++i) {
      const int64_t column = i % kColumns, row = i - column;
      const bool in_q = column >= 8 && column < 488, in_k = column >= 500 && column < 596;
      if (!in_q && !in_k) {
        ASSERT_EQ(y[i], x[i]) << column;
        continue;
      }
      const int64_t first = in_q ? 8 : 500, width = in_q ? 480 : 96;
      double sum = more;
      for (int64_t j = first; j < first + width; ++j) sum += double{x[row + j]} * x[row + j];
      const double want = x[i] / std::sqrt(sum / static_cast<double>(width * ranks) + kEps) *
                          (in_q ? q_weight[column - 8] : k_weight[column - 500]);
      ASSERT_NEAR(y[i], want, 1e-6 * std::abs(want)) << column;
    }
    const std::vector<float> alone = run({x.begin() + 2 * kColumns, x.begin() + 3 * kColumns}, more, ranks);
    EXPECT_EQ(alone, std::vector<float>(y.begin() + 2 * kColumns, y.begin() + 3 * kColumns));
  }
}

}  // namespace
}  // namespace volley::ops
