// Protects: tensors are found under every name that published files give them, and a drafter's weights are looked at
// before it drafts.
#include "weights/named.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weights/finite.h"

namespace volley::weights {
namespace {

using testing::ElementsAre;

// Knows names alone.
class Names final : public Checkpoint {
 public:
  explicit Names(std::vector<std::string> names) : names_(std::move(names)) {}
  bool has(std::string_view name) const override {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t>) const override {
    return not_found(std::string(name));
  }
  DType main_dtype() const override { return DType::kBF16; }
  std::vector<std::string> names() const override { return names_; }

 private:
  std::vector<std::string> names_;
};

const NameRules kRules = {
    {"", "model."}, {{"layers.0.", "midlayer."}, {"fc.", "encoder.fc."}}, {"t2d", "lm_head.weight"}};

std::shared_ptr<const Checkpoint> view(std::vector<std::string> names) {
  return with_names(std::make_shared<Names>(std::move(names)), kRules);
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

TEST(NamedCheckpoint, WhatIsMissingIsAskedForByItsUsualName) {
  const auto missing = view({"odd"})->get("layers.0.b", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message, "layers.0.b");
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
