// Protects, on the CPU and on a GPU: each pair of a row turns by the position of its axis, with the table's very
// values.
#include "ops/rope_angles/rope_angles.h"

#include <cmath>

#include "ops/device_for_test.h"

namespace volley::ops {
namespace {

DEVICE_TEST(RopeAngles, FollowTheAxisOfEachPair) {
  DEVICE_UNDER_TEST;
  const int64_t positions = 90;
  for (const int64_t pairs : {8, 33, 128}) {
    std::vector<float> cos(positions * pairs), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(std::cos(0.37 * static_cast<double>(i)));
      sin[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
    }
    std::vector<int32_t> axes, rows;
    for (int32_t i = 0; i < pairs; ++i) axes.push_back(i * 5 % 7 % 3);
    const int64_t n = 70;
    for (int32_t r = 0; r < n; ++r) rows.insert(rows.end(), {r, r * 31 % 90, 89 - r});
    const DeviceTensor c(device, cos), s(device, sin), a(device, axes), p(device, rows);
    const DeviceTensor to_cos(device, n * pairs * sizeof(float)), to_sin(device, n * pairs * sizeof(float));
    const auto table = [&](const DeviceTensor& t, int64_t height) { return t.view(DType::kF32, {height, pairs}); };
    take_rope_angles(device.stream(), {table(c, positions), table(s, positions)}, a.view(DType::kI32, {pairs}),
                     p.view(DType::kI32, {n, kRopeAxes}), {table(to_cos, n), table(to_sin, n)});
    const std::vector<float> got_cos = to_cos.read<float>(), got_sin = to_sin.read<float>();
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t at = rows[r * kRopeAxes + axes[i]] * pairs + i;
        ASSERT_EQ(got_cos[r * pairs + i], cos[at]) << r << " " << i;
        ASSERT_EQ(got_sin[r * pairs + i], sin[at]) << r << " " << i;
      }
    }
  }
}

#ifndef VOLLEY_OPS_TEST_CUDA
TEST(RopeAnglesDeathTest, RefusePositionsOutsideTheTable) {
  auto device = *make_cpu_device(1);
  float table[2] = {}, angle[1] = {};
  int32_t axes[1] = {1};
  const TensorView from(table, DType::kF32, {2, 1}), to(angle, DType::kF32, {1, 1});
  for (const int32_t position : {-1, 2}) {
    int32_t positions[3] = {0, position, 0};
    EXPECT_DEATH(take_rope_angles(device->stream(), {from, from}, {axes, DType::kI32, {1}},
                                  {positions, DType::kI32, {1, kRopeAxes}}, {to, to}),
                 "CHECK failed");
  }
}
#endif

}  // namespace
}  // namespace volley::ops
