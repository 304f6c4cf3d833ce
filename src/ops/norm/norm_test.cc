// Protects, on the CPU and on a GPU: values against an fp64 oracle; that a row's bits depend on the row alone; gathers
// and work in place; rows that are no multiple of a vector; the sum of a normed row.
#include "ops/norm/added_norm.h"

#include <cmath>

#include "ops/device_for_test.h"
#include "ops/embedding/embedding.h"
#include "ops/instruction_sets_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

// y of one row in fp64.
std::vector<double> oracle(const float* x, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * x[i];
  const double scale = 1 / std::sqrt(squares / weight.size() + eps);
  std::vector<double> y;
  for (size_t i = 0; i < weight.size(); ++i) y.push_back(x[i] * scale * weight[i]);
  return y;
}

// The sum of squares has a relative error below h roundings, the root halves it; root, quotient, mean, eps and the two
// products add one each.
double bound(double y, int64_t h) {
  return std::fabs(y) * (h / 2.0 + 6) * kRound;
}

void check_values(Device& device, int64_t rows, int64_t h) {
  const std::vector<float> x = normal_values(rows * h, 1), weight = normal_values(h, 2);
  const DeviceTensor x_device(device, x), weight_device(device, weight);
  const DeviceTensor y(device, rows * h * 4), rounded(device, rows * h * 2);
  const TensorView from = x_device.view(DType::kF32, {rows, h}), w = weight_device.view(DType::kF32, {h});
  rms_norm(device.stream(), from, w, 1e-6f, {}, y.view(DType::kF32, {rows, h}));
  rms_norm(device.stream(), from, w, 1e-6f, {}, rounded.view(DType::kBF16, {rows, h}));
  const std::vector<float> got = y.read<float>();
  const std::vector<BFloat16> got_rounded = rounded.read<BFloat16>();
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> want = oracle(&x[r * h], weight, 1e-6f);
    for (int64_t i = 0; i < h; ++i) {
      ASSERT_NEAR(got[r * h + i], want[i], bound(want[i], h)) << "h " << h << " row " << r << " column " << i;
      ASSERT_EQ(got_rounded[r * h + i].bits, to_bfloat16(got[r * h + i]).bits);
    }
  }
}

DEVICE_TEST(RmsNorm, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (int64_t h : {1, 3, 31, 512, 513, 1000, 2048, 2052, 4096, 5120, 12288}) check_values(device, 3, h);
  check_values(device, 200, 1025);  // enough for several tasks
}

// x += scale * norm(y), times a factor, and without a weight x += scale * y.
void check_added(Device& device, int64_t h) {
  constexpr int64_t kRows = 40;
  constexpr float kScale = 0.22f, kFactor = 0.7f;
  for (const bool normed : {true, false}) {
    const std::vector<float> y = normal_values(kRows * h, 5), weight = normal_values(h, 6),
                             x = normal_values(kRows * h, 7);
    const DeviceTensor y_device(device, y), weight_device(device, weight), x_device(device, x),
        factor_device(device, std::vector<float>{kFactor});
    const TensorView all_y = y_device.view(DType::kF32, {kRows, h}), all_x = x_device.view(DType::kF32, {kRows, h});
    const TensorView w = normed ? weight_device.view(DType::kF32, {h}) : TensorView();
    const TensorView factor = normed ? factor_device.view(DType::kF32, {1}) : TensorView();
    add_normed(device.stream(), all_y, w, 1e-6f, kScale, all_x, factor);
    const std::vector<float> got = x_device.read<float>();
    // The norm that follows has the bits of one apart.
    const DeviceTensor again(device, x), next(device, kRows * h * 4), apart(device, kRows * h * 4);
    AddedNorm both = {all_y, w, 1e-6f, kScale, factor, weight_device.view(DType::kF32, {h}), 1e-5f};
    both.h = next.view(DType::kF32, {kRows, h});
    add_normed_and_norm(device.stream(), both, again.view(DType::kF32, {kRows, h}));
    rms_norm(device.stream(), all_x, both.weight, both.eps, {}, apart.view(DType::kF32, {kRows, h}));
    ASSERT_EQ(again.read<float>(), got);
    ASSERT_EQ(next.read<float>(), apart.read<float>());
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> made = oracle(&y[r * h], weight, 1e-6f);
      for (int64_t i = 0; i < h; ++i) {
        const double added = double{kScale} * (normed ? made[i] : y[r * h + i]);
        const double want = (x[r * h + i] + added) * (normed ? double{kFactor} : 1);
        ASSERT_NEAR(got[r * h + i], want, bound(added, h) + 2 * kRound * std::fabs(want)) << "h " << h << " row " << r;
      }
    }
    // A row's bits do not depend on the rows beside it.
    const DeviceTensor alone(device, std::vector<float>(x.begin() + 3 * h, x.begin() + 4 * h));
    add_normed(device.stream(), all_y.rows(3, 1), w, 1e-6f, kScale, alone.view(DType::kF32, {1, h}), factor);
    ASSERT_EQ(alone.read<float>(), std::vector<float>(got.begin() + 3 * h, got.begin() + 4 * h));
  }
}

DEVICE_TEST(AddNormed, MatchesOracle) {
  DEVICE_UNDER_TEST;
  for (const int64_t h : {1, 31, 513, 2048, 5376}) check_added(device, h);
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

DEVICE_TEST(RmsNorm, GathersRowsAndWorksInPlace) {
  DEVICE_UNDER_TEST;
  for (const int64_t h : {37, 771, 1536}) check_rows(device, h);
}

// The copy of x that a drafter reads is what capture_feature() makes, and changes nothing of y.
DEVICE_TEST(RmsNorm, CopiesFeaturesIntoTheirBlockAlone) {
  DEVICE_UNDER_TEST;
  const int64_t rows = 5;
  for (const int64_t h : {37, 771, 1536, 4096, 8192}) {
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

#ifndef VOLLEY_OPS_TEST_CUDA

TEST(RmsNorm, MatchesOracleOnEveryInstructionSet) {
  for_each_instruction_set([] {
    auto device = *make_cpu_device(2);
    for (int64_t h : {1, 3, 16, 63, 64, 65, 127, 1000, 1024, 4097}) check_values(*device, 3, h);
    for (int64_t h : {1, 7, 64, 131, 2050}) check_added(*device, h);
  });
}

TensorView matrix(std::vector<float>& v, int64_t columns) {
  return {v.data(), DType::kF32, {static_cast<int64_t>(v.size()) / columns, columns}};
}
TensorView vector_of(std::vector<float>& v) {
  return {v.data(), DType::kF32, {static_cast<int64_t>(v.size())}};
}

TEST(RmsNorm, RowsAreIndependent) {
  const int64_t rows = 150, h = 771;
  std::vector<float> x = normal_values(rows * h, 1), weight = normal_values(h, 2), alone(rows * h);
  auto one = *make_cpu_device(1);
  for (int64_t r = 0; r < rows; ++r) {
    rms_norm(one->stream(), matrix(x, h).rows(r, 1), vector_of(weight), 1e-5f, {}, matrix(alone, h).rows(r, 1));
  }
  for (int threads : {1, 2, 3}) {
    auto device = *make_cpu_device(threads);
    for (int64_t count : {1, 2, 17, 149, 150}) {
      std::vector<float> y(count * h);
      rms_norm(device->stream(), matrix(x, h).rows(rows - count, count), vector_of(weight), 1e-5f, {}, matrix(y, h));
      ASSERT_EQ(std::memcmp(y.data(), &alone[(rows - count) * h], y.size() * sizeof(float)), 0) << count << " rows";
    }
  }
}

TEST(RmsNormDeathTest, RefusesRowsThatAreNotThere) {
  auto device = *make_cpu_device(1);
  std::vector<float> x(8), weight(4), y(4);
  std::vector<int32_t> index = {2};
  const TensorView rows(index.data(), DType::kI32, {1});
  EXPECT_DEATH(rms_norm(device->stream(), matrix(x, 4), vector_of(weight), 0.0f, rows, matrix(y, 4)), "CHECK failed");
}

#endif

}  // namespace
}  // namespace volley::ops
