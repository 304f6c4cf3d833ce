// Protects, on the CPU and on a GPU: softcapped logits and logits of a part of a vocabulary are what their formulas
// say; on any number of threads.
#include "ops/logits/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "ops/device_for_test.h"

namespace volley::ops {
namespace {

// Values from far below the cap to far above it, zeros and infinities among them: a head's sums.
std::vector<float> raw_logits(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random) * std::exp2(static_cast<float>(random() % 16) - 8.0f);
  if (n > 4) values[1] = 0, values[2] = std::numeric_limits<float>::infinity(), values[3] = -values[2];
  return values;
}

std::vector<float> softcapped(Device& device, const std::vector<float>& x, int64_t rows, float cap) {
  const DeviceTensor logits(device, x);
  end_logits(device.stream(), logits.view(DType::kF32, {rows, std::ssize(x) / rows}), {.cap = cap});
  return logits.read<float>();
}

// Two divisions and a tanh of fp32: a few units in the last place.
DEVICE_TEST(Softcap, IsTheFormula) {
  DEVICE_UNDER_TEST;
  for (const auto& [rows, width, cap] :
       {std::tuple<int64_t, int64_t, float>{1, 1, 30.0f}, {3, 7, 2.5f}, {37, 4099, 30.0f}, {2, 50'000, 50.0f}}) {
    const std::vector<float> x = raw_logits(rows * width, 3);
    const std::vector<float> y = softcapped(device, x, rows, cap);
    for (size_t i = 0; i < x.size(); ++i) {
      const double oracle = double{cap} * std::tanh(double{x[i]} / double{cap});
      ASSERT_NEAR(y[i], oracle, 5e-7 * std::abs(oracle)) << "row of " << width << ", value " << x[i];
    }
    // A row's bits do not depend on the rows beside it.
    const std::vector<float> last(x.end() - width, x.end());
    ASSERT_EQ(softcapped(device, last, 1, cap), std::vector<float>(y.end() - width, y.end()));
  }
  const std::vector<float> nan = softcapped(device, {std::nanf(""), 1.0f}, 1, 30.0f);
  EXPECT_TRUE(std::isnan(nan[0])) << "what is no number must not become one";
}

// Logits that are scaled, and capped or not.
DEVICE_TEST(Softcap, ScalesFirst) {
  DEVICE_UNDER_TEST;
  const std::vector<float> x = raw_logits(3 * 131, 5);
  for (const LogitsEnd& end : {LogitsEnd{.scale = 0.125f}, LogitsEnd{.scale = 3.0f, .cap = 20.0f}}) {
    const DeviceTensor logits(device, x);
    end_logits(device.stream(), logits.view(DType::kF32, {3, 131}), end);
    const std::vector<float> y = logits.read<float>();
    for (size_t i = 0; i < x.size(); ++i) {
      const double scaled = double{end.scale} * x[i];
      const double oracle = end.cap > 0 ? end.cap * std::tanh(scaled / end.cap) : scaled;
      if (std::isinf(oracle)) {
        ASSERT_EQ(y[i], oracle);
      } else {
        ASSERT_NEAR(y[i], oracle, 6e-7 * std::abs(oracle)) << x[i];
      }
    }
  }
}

DEVICE_TEST(SpreadColumns, PutsEachLogitAtItsTokenAndNothingElsewhere) {
  DEVICE_UNDER_TEST;
  for (const auto& [rows, n, vocab] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 5, 7}, {5, 64, 64}, {20, 1000, 40'004}, {2, 9, 5001}}) {
    std::vector<int32_t> all(static_cast<size_t>(vocab)), ids;
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    std::mt19937 random(7);
    std::shuffle(all.begin(), all.end(), random);  // not ascending: any order is a map
    ids.assign(all.begin(), all.begin() + n);
    const std::vector<float> x = raw_logits(rows * n, 11);
    const DeviceTensor from(device, x), columns(device, ids), to(device, static_cast<size_t>(rows * vocab) * 4);
    spread_columns(device.stream(), from.view(DType::kF32, {rows, n}), columns.view(DType::kI32, {n}),
                   to.view(DType::kF32, {rows, vocab}));
    std::vector<float> expected(static_cast<size_t>(rows * vocab), -std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) expected[i * vocab + ids[j]] = x[i * n + j];
    }
    ASSERT_EQ(to.read<float>(), expected) << n << " of " << vocab;
  }
}

#ifndef VOLLEY_OPS_TEST_CUDA

TEST(Softcap, ThreadsDoNotChangeABit) {
  const std::vector<float> x = raw_logits(3 * 70'001, 5);
  std::vector<float> one;
  for (const int threads : {1, 2, 3}) {
    auto device = *make_cpu_device(threads);
    const std::vector<float> y = softcapped(*device, x, 3, 30.0f);
    if (one.empty()) one = y;
    EXPECT_EQ(y, one) << threads;
  }
}

TEST(SpreadColumns, RefusesATokenThatDoesNotExist) {
  auto device = *make_cpu_device(1);
  float x[1] = {}, y[2] = {};
  int32_t ids[1] = {2};
  EXPECT_DEATH(
      spread_columns(device->stream(), {x, DType::kF32, {1, 1}}, {ids, DType::kI32, {1}}, {y, DType::kF32, {1, 2}}),
      "CHECK failed");
}

#endif

}  // namespace
}  // namespace volley::ops
