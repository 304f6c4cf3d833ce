// Protects: rotary tables equal those of transformers for every scaling, at the sizes and positions of real models
// (fixtures: tests/data/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "families/family.h"
#include "weights/checkpoint.h"

namespace volley::families {
namespace {

constexpr int64_t kPositions[] = {0, 1, 2, 7, 63, 500, 1023, 4097, 8191};

std::vector<float> read_tensor(const weights::Checkpoint& checkpoint, const char* name,
                               const std::vector<int64_t>& shape) {
  const Result<weights::SourceTensor> tensor = checkpoint.get(name, shape);
  EXPECT_TRUE(tensor.ok()) << tensor.error().message;
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor->data, count * sizeof(float));
  return values;
}

class RopeValuesTest : public testing::TestWithParam<const char*> {};

TEST_P(RopeValuesTest, AreThoseOfTransformers) {
  const std::string dir = std::string("tests/data/rope/") + GetParam();
  const Result<TargetConfig> target = read_target(dir);
  ASSERT_TRUE(target.ok()) << target.error().message;
  const model::RopeSpec& rope = target->decoder.ropes[0];
  const auto checkpoint = weights::open_safetensors(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const int64_t half = rope.dim / 2;
  const int64_t rows = std::size(kPositions);
  const auto frequency = read_tensor(**checkpoint, "inv_freq", {half});
  const auto cos = read_tensor(**checkpoint, "cos", {rows, half});
  const auto sin = read_tensor(**checkpoint, "sin", {rows, half});

  const model::RopeValues values = model::rope_values(rope, kPositions[rows - 1] + 1);
  ASSERT_EQ(values.cos.size(), static_cast<size_t>((kPositions[rows - 1] + 1) * half));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < half; ++i) {
      const size_t at = static_cast<size_t>(kPositions[row] * half + i);
      // Two units in the last place of the frequency turn the angle by this much; the rest is cos and sin themselves,
      // and the attention factor (at most 1.5 here).
      const double angle = static_cast<double>(kPositions[row]) * frequency[i];
      const double tolerance = 1.5 * (angle * 0x1p-22 + 0x1p-23);
      EXPECT_NEAR(values.cos[at], cos[row * half + i], tolerance) << "position " << kPositions[row] << " pair " << i;
      EXPECT_NEAR(values.sin[at], sin[row * half + i], tolerance) << "position " << kPositions[row] << " pair " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RopeValuesTest,
                         testing::Values("none", "linear", "llama3", "yarn", "yarn_mscale", "yarn_untruncated",
                                         "proportional"),
                         [](const auto& info) { return info.param; });

TEST(RopeValues, PositionZeroTurnsNothing) {
  const model::RopeValues values = model::rope_values({.dim = 32}, 1);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values.cos[i], 1.0f);
    EXPECT_EQ(values.sin[i], 0.0f);
  }
}

TEST(RopeValues, AnAttentionFactorScalesBoth) {
  model::RopeSpec spec;
  spec.dim = 16;
  spec.scaling = model::RopeSpec::Scaling::kYarn;
  spec.factor = 4;
  spec.original_max_position = 64;
  spec.attention_factor = 1.0;
  const model::RopeValues plain = model::rope_values(spec, 9);
  spec.attention_factor = 2.0;
  const model::RopeValues doubled = model::rope_values(spec, 9);
  for (size_t i = 0; i < plain.cos.size(); ++i) {
    EXPECT_EQ(doubled.cos[i], 2 * plain.cos[i]);
    EXPECT_EQ(doubled.sin[i], 2 * plain.sin[i]);
  }
}

TEST(RopeValues, NoPositionsNoValues) {
  EXPECT_TRUE(model::rope_values({.dim = 16}, 0).cos.empty());
}

}  // namespace
}  // namespace volley::families
