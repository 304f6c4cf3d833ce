// Protects: values against an fp64 oracle; that a row's bits depend on the row alone; gathers; rows that are no
// multiple of a vector.
#include "ops/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/instruction_sets_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr double kRound = 0x1p-24;
constexpr double kRoundBF16 = 0x1p-8;

TensorView matrix(std::vector<float>& v, int64_t columns) {
  return {v.data(), DType::kF32, {static_cast<int64_t>(v.size()) / columns, columns}};
}
TensorView vector_of(std::vector<float>& v) {
  return {v.data(), DType::kF32, {static_cast<int64_t>(v.size())}};
}

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

void check_values(int64_t rows, int64_t h) {
  auto device = *make_cpu_device(2);
  std::vector<float> x = normal_values(rows * h, 1), weight = normal_values(h, 2), y(rows * h);
  std::vector<BFloat16> rounded(rows * h);
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {}, matrix(y, h));
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {},
           TensorView(rounded.data(), DType::kBF16, {rows, h}));
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> want = oracle(&x[r * h], weight, 1e-6f);
    for (int64_t i = 0; i < h; ++i) {
      ASSERT_NEAR(y[r * h + i], want[i], bound(want[i], h)) << "h " << h << " row " << r << " column " << i;
      ASSERT_EQ(rounded[r * h + i].bits, to_bfloat16(y[r * h + i]).bits);
    }
  }
}

TEST(RmsNorm, MatchesOracleOnEveryInstructionSet) {
  for_each_instruction_set([] {
    for (int64_t h : {1, 3, 16, 63, 64, 65, 127, 1000, 1024, 4097}) check_values(3, h);
  });
  check_values(200, 1025);  // enough for several tasks
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

TEST(RmsNorm, GathersRowsAndWorksInPlace) {
  auto device = *make_cpu_device(2);
  const int64_t h = 37;
  std::vector<float> x = normal_values(5 * h, 1), weight = normal_values(h, 2), all(5 * h), some(4 * h);
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {}, matrix(all, h));
  std::vector<int32_t> index = {4, 0, 0, 3};
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {index.data(), DType::kI32, {4}}, matrix(some, h));
  for (size_t r = 0; r < index.size(); ++r) {
    EXPECT_EQ(std::memcmp(&some[r * h], &all[index[r] * h], h * sizeof(float)), 0) << r;
  }
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {}, matrix(x, h));
  EXPECT_EQ(x, all);
}

TEST(RmsNorm, CopiesFeaturesIntoTheirBlockAlone) {
  auto device = *make_cpu_device(2);
  const int64_t rows = 5, h = 37;
  std::vector<float> x = normal_values(rows * h, 1), weight = normal_values(h, 2), plain(rows * h), y(rows * h);
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {}, matrix(plain, h));
  std::vector<float> features(rows * 3 * h, -7.0f);
  rms_norm(device->stream(), matrix(x, h), vector_of(weight), 1e-6f, {}, matrix(y, h), {matrix(features, 3 * h), 1});
  EXPECT_EQ(y, plain);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < 3 * h; ++i) {
      EXPECT_EQ(features[r * 3 * h + i], i / h == 1 ? x[r * h + i - h] : -7.0f) << r << " " << i;
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

}  // namespace
}  // namespace volley::ops
