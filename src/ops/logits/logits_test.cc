// Protects: softcapped logits and logits of a part of a vocabulary are what their formulas say, on any number of
// threads.
#include "ops/logits/logits_testing.h"

namespace volley::ops {
namespace {

TEST(Softcap, IsTheFormula) {
  auto device = *make_cpu_device(2);
  expect_softcap(*device);
}

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

TEST(SpreadColumns, PutsEachLogitAtItsTokenAndNothingElsewhere) {
  for (const int threads : {1, 3}) {
    auto device = *make_cpu_device(threads);
    expect_spread(*device);
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

}  // namespace
}  // namespace volley::ops
