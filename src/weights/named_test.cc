// Protects: tensors are found under every name that published files give them, and a drafter's weights are looked at
// before it drafts.
#include "weights/named.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "weights/finite.h"

namespace volley::weights {
namespace {

using testing::ElementsAre;

constexpr float kValues[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

// Knows only names; each tensor counts.
class Names final : public Checkpoint {
 public:
  explicit Names(std::vector<std::string> names, DType main = DType::kBF16) : names_(std::move(names)), main_(main) {}
  bool has(std::string_view name) const override {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return get_part(name, shape, 0, shape);
  }
  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t>, int64_t first,
                                std::span<const int64_t> shape) const override {
    VOLLEY_RETURN_IF_ERROR(check(name, shape));
    return SourceTensor{
        reinterpret_cast<const std::byte*>(kValues + first), DType::kF32, {shape.begin(), shape.end()}, {}};
  }
  Status check(std::string_view name, std::span<const int64_t>) const override {
    return has(name) ? Status() : not_found(std::string(name));
  }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    VOLLEY_RETURN_IF_ERROR(check_integers(name, count));
    return std::vector<int64_t>(static_cast<size_t>(count), 7);
  }
  Status check_integers(std::string_view name, int64_t) const override { return check(name, {}); }
  DType dtype_of(std::string_view name) const override { return has(name) ? DType::kF32 : DType::kBF16; }
  DType main_dtype() const override { return main_; }
  std::vector<std::string> names() const override { return names_; }

 private:
  std::vector<std::string> names_;
  DType main_;
};

const NameRules kRules = {.prefixes = {"", "model."},
                          .aliases = {{"layers.0.", "midlayer."}, {"fc.", "encoder.fc."}},
                          .copies = {"t2d", "lm_head.weight"}};

std::shared_ptr<const Checkpoint> view(std::vector<std::string> names, const NameRules& rules = kRules) {
  return with_names(std::make_shared<Names>(std::move(names)), rules);
}

TEST(NamedCheckpoint, FindsPrefixesAndAliases) {
  const auto checkpoint = view({"model.encoder.fc.weight", "midlayer.mlp.up_proj.weight", "norm.weight", "t2d",
                                "model.lm_head.weight", "layers.1.b", "odd"});
  for (const char* name : {"fc.weight", "layers.0.mlp.up_proj.weight", "norm.weight", "layers.1.b"}) {
    EXPECT_TRUE(checkpoint->has(name)) << name;
  }
  EXPECT_FALSE(checkpoint->has("layers.1.mlp.up_proj.weight"));
  EXPECT_THAT(checkpoint->names(),
              ElementsAre("fc.weight", "layers.0.mlp.up_proj.weight", "norm.weight", "layers.1.b", "odd"));
}

TEST(NamedCheckpoint, KnowsOtherWordsInsideNames) {
  NameRules rules;
  rules.inner = {{"mlp.gate.", "mlp.router."}};
  const auto checkpoint = view({"model.layers.0.mlp.router.weight", "model.layers.1.mlp.gate.weight"}, rules);
  EXPECT_TRUE(checkpoint->has("layers.0.mlp.gate.weight"));
  EXPECT_FALSE(checkpoint->has("layers.1.mlp.gate.weight"));
  EXPECT_THAT(checkpoint->names(), ElementsAre("layers.0.mlp.gate.weight", "layers.1.mlp.gate.weight"));
  EXPECT_EQ(checkpoint->get("layers.2.mlp.gate.bias", {}).error().message, "model.layers.2.mlp.router.bias");
}

TEST(NamedCheckpoint, WhatIsMissingIsAskedForByItsUsualName) {
  const auto missing = view({"odd"})->get("layers.0.b", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message, "layers.0.b");
}

// Cache scales are no weights, and files without other quantised tensors are plain.
TEST(NamedCheckpoint, ScalesOfTheCacheAloneLeaveAPlainModel) {
  const std::string attention = "model.layers.0.self_attn.";
  const auto files = std::make_shared<Names>(
      std::vector<std::string>{attention + "k_proj.weight", attention + "k_proj.k_scale", attention + "v_scale",
                               attention + "kv_scale", attention + "v_proj.output_scale"},
      DType::kF16);
  NameRules rules;
  rules.quantisation = std::make_shared<Quantisation>();
  const auto plain = with_names(files, rules);
  EXPECT_THAT(plain->names(), ElementsAre("layers.0.self_attn.k_proj.weight"));
  EXPECT_EQ(plain->quantisation(), "");
  EXPECT_EQ(plain->main_dtype(), DType::kF16);
  rules.quantisation = std::make_shared<Quantisation>(Quantisation{.name = "modelopt FP8"});
  EXPECT_EQ(with_names(files, rules)->main_dtype(), DType::kBF16);
}

// Two experts of one gate and one up row of 3 columns, as one tensor and one by one.
TEST(NamedCheckpoint, StacksAreReadAsTheirParts) {
  NameRules rules;
  rules.stacks.push_back({"mlp.experts.", "gate_up_proj", {"gate_proj.weight", "up_proj.weight"}, 2});
  const auto stacked =
      with_names(std::make_shared<Names>(std::vector<std::string>{"model.layers.7.mlp.experts.gate_up_proj"}), rules);
  const std::string expert = "layers.7.mlp.experts.1.";
  EXPECT_THAT(stacked->names(),
              ElementsAre("layers.7.mlp.experts.0.gate_proj.weight", "layers.7.mlp.experts.0.up_proj.weight",
                          expert + "gate_proj.weight", expert + "up_proj.weight"));
  const std::array<int64_t, 2> shape = {2, 3};
  const auto up = stacked->get(expert + "up_proj.weight", shape);
  ASSERT_TRUE(up.ok()) << up.error().message;
  EXPECT_EQ(reinterpret_cast<const float*>(up->data)[0], 18) << "after gate, up and gate of 2 rows";
  EXPECT_THAT(up->shape, ElementsAre(2, 3));
  EXPECT_TRUE(stacked->has(expert + "gate_proj.weight"));
  EXPECT_EQ(stacked->dtype_of(expert + "gate_proj.weight"), DType::kF32) << "of the stack, not the default";
  for (const char* name : {"layers.7.mlp.experts.2.up_proj.weight", "layers.7.mlp.experts.1.down_proj.weight",
                           "layers.8.mlp.experts.1.up_proj.weight", "layers.7.mlp.experts.x.up_proj.weight"}) {
    EXPECT_FALSE(stacked->has(name)) << name;
    EXPECT_FALSE(stacked->get(name, shape).ok()) << name;
  }
  const auto single = with_names(std::make_shared<Names>(std::vector<std::string>{expert + "up_proj.weight"}), rules);
  const auto same = single->get(expert + "up_proj.weight", shape);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(reinterpret_cast<const float*>(same->data)[0], 0);
  EXPECT_THAT(single->names(), ElementsAre(expert + "up_proj.weight"));
}

// Every type, the odd element at every place of the words and of the rest after them.
template <typename T>
void expect_found(DType dtype, T finite, const std::vector<T>& odd) {
  for (size_t n = 1; n <= 9; ++n) {
    std::vector<T> values(n, finite);
    SourceTensor tensor;
    tensor.data = reinterpret_cast<const std::byte*>(values.data());
    tensor.dtype = dtype;
    tensor.shape = {static_cast<int64_t>(n)};
    EXPECT_TRUE(all_finite(tensor)) << n;
    for (const T bad : odd) {
      for (T& value : values) {
        value = bad;
        EXPECT_FALSE(all_finite(tensor)) << n;
        value = finite;
      }
    }
  }
}

TEST(Finite, FindsNanAndInfinityOfEveryType) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_found<float>(DType::kF32, -std::numeric_limits<float>::max(), {kInfinity, -kInfinity, std::nanf("")});
  expect_found<uint16_t>(DType::kBF16, 0xff7f, {0x7f80, 0xff80, 0x7fc0, 0xff81});
  expect_found<uint16_t>(DType::kF16, 0xfbff, {0x7c00, 0xfc00, 0x7e00, 0xfc01});
}

}  // namespace
}  // namespace volley::weights
