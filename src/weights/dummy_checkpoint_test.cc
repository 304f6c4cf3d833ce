// Protects: random weights are reproducible and look like weights, so that a benchmark without a checkpoint does the
// same arithmetic each time and its activations neither vanish nor overflow.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "weights/coded.h"
#include "weights/dummy_codes.h"

namespace volley::weights {
namespace {

std::vector<float> values(const Checkpoint& checkpoint, const std::string& name, const std::vector<int64_t>& shape) {
  const SourceTensor tensor = *checkpoint.get(name, shape);
  EXPECT_EQ(tensor.dtype, DType::kBF16);
  EXPECT_EQ(tensor.shape, shape);
  size_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    BFloat16 x;
    std::memcpy(&x, tensor.data + i * sizeof(x), sizeof(x));
    out[i] = to_float(x);
  }
  return out;
}

TEST(DummyCheckpoint, HasEverythingInBf16) {
  const auto checkpoint = make_dummy_checkpoint(1);
  EXPECT_TRUE(checkpoint->has("model.layers.0.mlp.up_proj.weight"));
  EXPECT_EQ(checkpoint->main_dtype(), DType::kBF16);
}

TEST(DummyCheckpoint, DependsOnSeedNameAndShapeAlone) {
  const auto a = make_dummy_checkpoint(1);
  const auto b = make_dummy_checkpoint(1);
  const auto other_seed = make_dummy_checkpoint(2);
  const auto x = values(*a, "w", {7, 33});
  EXPECT_EQ(x, values(*b, "w", {7, 33}));
  EXPECT_EQ(x, values(*a, "w", {7, 33})) << "a second call continues no stream";
  EXPECT_NE(x, values(*a, "v", {7, 33}));
  EXPECT_NE(x, values(*a, "w", {33, 7}));
  EXPECT_NE(x, values(*other_seed, "w", {7, 33}));
}

// Ranks read their own parts, which must be slices of one model. The size needs several threads.
TEST(DummyCheckpoint, PartsAreThoseOfTheWhole) {
  const auto checkpoint = make_dummy_checkpoint(1);
  const std::vector<int64_t> whole = {1500, 1031};
  const SourceTensor all = *checkpoint->get("w", whole);
  for (const auto& [first, rows] : {std::pair(0, 1500), {0, 1}, {1, 2}, {7, 1300}, {1499, 1}, {3, 0}}) {
    const std::vector<int64_t> shape = {rows, 1031};
    const SourceTensor part = *checkpoint->get_part("w", whole, first * int64_t{1031}, shape);
    EXPECT_EQ(part.shape, shape);
    EXPECT_EQ(std::memcmp(part.data, all.data + first * 1031 * sizeof(BFloat16), rows * 1031 * sizeof(BFloat16)), 0)
        << rows << " rows from " << first;
  }
}

TEST(DummyCheckpoint, IsNormalWithVarianceOneOverTheLastDimension) {
  const auto x = values(*make_dummy_checkpoint(3), "w", {1000, 400});
  double sum = 0, squares = 0, fourths = 0;
  int beyond_two = 0;
  const double deviation = 1 / std::sqrt(400.0);
  for (const float v : x) {
    const double z = v / deviation;
    sum += z, squares += z * z, fourths += z * z * z * z;
    beyond_two += std::abs(z) > 2;
  }
  const double n = static_cast<double>(x.size());
  // Five standard errors of 400,000 draws; rounding to bf16 is far below that.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(beyond_two / n, 0.0455, 5 * std::sqrt(0.0455 / n));
}

TEST(DummyCheckpoint, NeighboursAreUncorrelated) {
  const auto x = values(*make_dummy_checkpoint(4), "w", {1000, 400});
  for (const size_t lag : {1, 2, 4, 5, 400}) {
    double sum = 0, squares = 0;
    for (size_t i = lag; i < x.size(); ++i) sum += x[i] * x[i - lag], squares += x[i] * x[i];
    EXPECT_NEAR(sum / squares, 0, 5 / std::sqrt(static_cast<double>(x.size()))) << lag;
  }
}

TEST(DummyCheckpoint, NormWeightsAreOne) {
  for (const float v : values(*make_dummy_checkpoint(5), "model.norm.weight", {96})) EXPECT_EQ(v, 1.0f);
}

TEST(DummyCheckpoint, EmptyTensorsAreEmpty) {
  EXPECT_TRUE(values(*make_dummy_checkpoint(6), "w", {3, 0}).empty());
}

// Only experts, repeatable, with values of the size of plain weights.
TEST(DummyCheckpoint, ExpertsAreCodesWhereTheConfigurationSaysSo) {
  const std::array<int64_t, 2> shape = {40, 320};
  const auto dummy = [](const char* method) {
    const Quantisation quantisation{.name = method};
    return with_dummy_codes(std::shared_ptr<const Checkpoint>(make_dummy_checkpoint(7)), &quantisation, 7);
  };
  const std::string expert = "model.layers.0.mlp.experts.3.down_proj.weight";
  EXPECT_FALSE(dummy("awq")->code_format(expert, shape)->has_value());
  const auto codes = dummy("mxfp4");
  EXPECT_FALSE(codes->code_format("model.layers.0.self_attn.q_proj.weight", shape)->has_value());
  ASSERT_TRUE(codes->code_format(expert, shape)->has_value());
  EXPECT_EQ((*codes->code_format(expert, shape))->bytes, 40 * (160 + 10));
  const auto read = [&](const std::string& name) {
    std::vector<float> values(40 * 320);
    for (int64_t row = 0; row < 40; ++row)
      (*dummy("mxfp4")->coded(name, shape))->widen({row, 0, 320}, &values[row * 320]);
    return values;
  };
  const std::vector<float> x = read(expert);
  EXPECT_EQ(x, read(expert));
  EXPECT_NE(x, read("model.layers.0.mlp.experts.4.down_proj.weight"));
  double squares = 0;
  for (const float v : x) squares += v * v;
  const double deviation = std::sqrt(squares / static_cast<double>(x.size())) * std::sqrt(320.0);
  EXPECT_GT(deviation, 0.7);
  EXPECT_LT(deviation, 1.42);
}

// Projections, of experts and others; none in a format without blocks.
TEST(DummyCheckpoint, ProjectionsAreBytesInBlocksWhereTheConfigurationSaysSo) {
  const std::array<int64_t, 2> shape = {40, 320};
  const auto dummy = [](int32_t block) {
    const Quantisation quantisation{.name = "fp8", .block_rows = block, .block_columns = block};
    return with_dummy_codes(std::shared_ptr<const Checkpoint>(make_dummy_checkpoint(7)), &quantisation, 7);
  };
  const std::string layer = "model.layers.0.";
  const auto codes = dummy(128);
  for (const char* name : {"mlp.experts.3.down_proj.weight", "self_attn.q_proj.weight", "linear_attn.out_proj.weight",
                           "linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_z.weight"}) {
    const auto format = codes->code_format(layer + name, shape);
    ASSERT_TRUE(format->has_value()) << name;
    EXPECT_EQ((*format)->code, DType::kF8E4M3);
    EXPECT_EQ((*format)->group, 128);
    EXPECT_EQ((*format)->block_rows, 128);
    EXPECT_EQ((*format)->bytes, 40 * 320 + 3 * 4);
    EXPECT_FALSE(dummy(0)->code_format(layer + name, shape)->has_value()) << name;
  }
  for (const char* name : {"mlp.gate.weight", "mlp.shared_expert_gate.weight", "linear_attn.in_proj_ba.weight",
                           "linear_attn.in_proj_a.weight", "input_layernorm.weight"}) {
    EXPECT_FALSE(codes->code_format(layer + name, shape)->has_value()) << name;
  }
  EXPECT_FALSE(codes->code_format("lm_head.weight", shape)->has_value());
  const auto matrix = *codes->coded(layer + "mlp.experts.3.down_proj.weight", shape);
  double squares = 0;
  std::vector<float> row(320), part(100);
  for (int64_t r = 0; r < 40; ++r) {
    matrix->widen({r, 0, 320}, row.data());
    matrix->widen({r, 75, 100}, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), row.begin() + 75)) << "a rank's columns";
    for (const float v : row) squares += v * v;
  }
  const double deviation = std::sqrt(squares / (40 * 320)) * std::sqrt(320.0);
  EXPECT_GT(deviation, 0.7);
  EXPECT_LT(deviation, 1.42);
}

}  // namespace
}  // namespace volley::weights
