// Protects: the values that a rank packs from a checkpoint's tensors equal the whole model's: rows and columns, plain,
// transposed or codes of every format, or whole experts; and a division that would cut through groups of codes is
// refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "model/ffn/experts_for_test.h"
#include "model/shard.h"
#include "model/weight_loader.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "weights/coded.h"

namespace volley::model {
namespace {

using testing::HasSubstr;
using weights::CodedMatrix;
using weights::CodeFormat;

// Codes and scales that differ from one group to the next.
class Codes final : public CodedMatrix {
 public:
  // salt: makes tensors differ.
  Codes(const CodeFormat& format, int64_t rows, int64_t columns, int64_t salt)
      : CodedMatrix(format, rows, columns), salt_(salt) {
    for (int64_t c = 0; format.scattered && c < columns; ++c)
      group_of_column_.push_back(static_cast<int32_t>(c % groups()));
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t* zeros, float*) const override {
    const int64_t row = place.row + salt_;
    const bool bytes = format().code == DType::kF8E4M3;
    for (int64_t c = place.first; c < place.first + place.n; ++c) {
      const auto mixed = static_cast<uint64_t>(row * 7919 + c * 104729) * 0x9e3779b97f4a7c15u >> 40;
      codes[c - place.first] = static_cast<uint8_t>(bytes ? mixed % 0x70 : mixed % 16);
    }
    for (int64_t g = 0; g < groups(); ++g) scales[g] = 0.25f * static_cast<float>(1 + (row + 3 * g) % 11);
    for (int64_t g = 0; format().zeros && g < groups(); ++g) zeros[g] = static_cast<uint8_t>((row + g) % 16);
  }

 private:
  int64_t salt_;
};

// One tensor of random values for each name; as codes where it has a format.
class OneFormat final : public weights::Checkpoint {
 public:
  explicit OneFormat(std::optional<CodeFormat> format = std::nullopt) : format_(std::move(format)) {}
  bool has(std::string_view name) const override { return plain_->has(name); }
  Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    asked.emplace_back(name);
    return plain_->get(name, shape);
  }
  Result<weights::SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                         std::span<const int64_t> shape) const override {
    return plain_->get_part(name, whole, first, shape);
  }
  Status check(std::string_view, std::span<const int64_t>) const override { return {}; }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    return plain_->integers(name, count);
  }
  Status check_integers(std::string_view, int64_t) const override { return {}; }
  DType main_dtype() const override { return DType::kBF16; }
  Result<std::optional<CodeFormat>> code_format(std::string_view, std::span<const int64_t>) const override {
    return format_;
  }
  Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name,
                                                   std::span<const int64_t> shape) const override {
    asked.emplace_back(name);
    const auto salt = static_cast<int64_t>(std::hash<std::string_view>()(name) % 1000);
    return std::shared_ptr<const CodedMatrix>(std::make_shared<Codes>(*format_, shape[0], shape[1], salt));
  }

  mutable std::vector<std::string> asked;  // names whose values were read

 private:
  std::optional<CodeFormat> format_;
  std::unique_ptr<weights::Checkpoint> plain_ = weights::make_dummy_checkpoint(3);
};

class Loading : public testing::Test {
 protected:
  static std::unique_ptr<Device> cpu() {
    auto device = make_cpu_device(1);
    VOLLEY_CHECK(device.ok());
    return std::move(device).value();
  }

  // The values of the matrix that `param` is packed to, [rows][columns]: its products with unit vectors are exact.
  std::vector<std::vector<float>> values(const Param& param, const weights::Checkpoint& checkpoint) {
    const std::vector<Param> list = {param};
    WeightLoader loader(*device_, checkpoint, numerics_, list);
    auto weight = loader.linear(param.role);
    VOLLEY_CHECK_MSG(weight.ok(), weight.ok() ? "" : weight.error().message);
    const int64_t k = param.columns, n = param.rows();
    std::vector<float> unit(k * k), y(k * n);
    for (int64_t i = 0; i < k; ++i) unit[i * k + i] = 1;
    auto memory = device_->allocate(1 << 20);
    VOLLEY_CHECK(memory.ok());
    Arena scratch(std::move(memory).value());
    ops::linear(device_->stream(), *weight, {TensorView(unit.data(), DType::kF32, {k, k})},
                TensorView(y.data(), DType::kF32, {k, n}), {}, scratch);
    std::vector<std::vector<float>> rows(n, std::vector<float>(k));
    for (int64_t i = 0; i < k * n; ++i) rows[i % n][i / n] = y[i];
    return rows;
  }

  // Checks that the ranks' parts together are the whole.
  void check(const Param& param, const weights::Checkpoint& checkpoint, int ranks, const std::string& what) {
    const auto whole = values(param, checkpoint);
    for (int rank = 0; rank < ranks; ++rank) {
      const Param mine = shard({param}, rank, ranks)[0];
      const auto part = values(mine, checkpoint);
      const bool columns = param.parts[0].split == Split::kInputs;
      const int64_t first_row = columns ? 0 : rank * mine.rows(), first = columns ? rank * mine.columns : 0;
      for (size_t r = 0; r < part.size(); ++r) {
        const auto& row = whole[first_row + static_cast<int64_t>(r)];
        ASSERT_EQ(part[r], std::vector<float>(row.begin() + first, row.begin() + first + mine.columns))
            << what << ", rank " << rank << " of " << ranks << ", row " << r;
      }
    }
  }

  std::unique_ptr<Device> device_ = cpu();
  Numerics numerics_ = {DType::kF32, DType::kBF16};
};

Param down(int64_t columns) {
  return {"down", Param::Kind::kMatrix, columns, {{"down.weight", 40, Split::kInputs}}};
}

Param up(int64_t columns) {
  return {"up", Param::Kind::kMatrix, columns, {{"up.weight", 40, Split::kOutputs}}};
}

TEST_F(Loading, OfPlainMatrices) {
  const OneFormat checkpoint;
  for (const int ranks : {2, 4}) {
    check(down(44), checkpoint, ranks, "columns");
    check(up(44), checkpoint, ranks, "rows");
  }
}

TEST_F(Loading, OfCodes) {
  for (const auto& [code, zeros] : std::vector<std::pair<DType, bool>>{
           {DType::kF8E4M3, false}, {DType::kF4E2M1, false}, {DType::kI4, false}, {DType::kI4, true}}) {
    for (const int32_t group : {0, 16, 32, 64, 128}) {
      CodeFormat format = {.code = code, .group = group, .zeros = zeros, .name = "codes"};
      const OneFormat checkpoint(format);
      const std::string what = std::string(dtype_name(code)) + "/" + std::to_string(group) + (zeros ? " zeros" : "");
      // Ranks' columns are whole groups, or 3 of 16 columns inside one group or across two.
      for (const int64_t columns : {512, 192}) {
        for (const int ranks : {2, 4}) {
          check(down(columns), checkpoint, ranks, what);
          check(up(columns), checkpoint, ranks, what);
        }
      }
    }
  }
}

// Ranks that divide experts among them pack the bytes that those have in the whole model, in every format and in either
// form of the checkpoint, and read no other rank's tensors; also where their width cannot be divided.
TEST_F(Loading, OfWholeExperts) {
  std::vector<std::optional<CodeFormat>> formats = {std::nullopt};
  for (const auto& [code, groups, zeros] :
       std::vector<std::tuple<DType, std::vector<int32_t>, bool>>{{DType::kF8E4M3, {0, 128}, false},
                                                                  {DType::kF4E2M1, {32}, false},
                                                                  {DType::kI4, {0, 32, 128}, false},
                                                                  {DType::kI4, {32}, true}}) {
    for (const int32_t group : groups) {
      formats.push_back(CodeFormat{.code = code, .group = group, .zeros = zeros, .name = "codes"});
    }
  }
  Decoder decoder;
  decoder.hidden = 128;
  decoder.layers = {{Attention{}, Experts{}}};
  Experts& experts = std::get<Experts>(decoder.layers[0].ffn);
  experts.router.experts = 4;
  experts.inner = 96;  // half of the width would end inside groups
  experts.by_expert = true;
  for (const bool interleaved : {false, true}) {
    experts.interleaved = interleaved;
    const std::vector<Param> list = layer_params(decoder, 0);
    for (const std::optional<CodeFormat>& format : formats) {
      const OneFormat checkpoint(format);
      for (const char* role : {"layers.0.experts_gate_up", "layers.0.experts_down"}) {
        WeightLoader whole_loader(*device_, checkpoint, numerics_, list);
        const auto whole = whole_loader.experts(role);
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        for (const int ranks : {2, 4}) {
          const size_t part = whole->packed.bytes() / ranks;
          for (int rank = 0; rank < ranks; ++rank) {
            const std::vector<Param> own = shard(list, rank, ranks);
            WeightLoader loader(*device_, checkpoint, numerics_, own);
            checkpoint.asked.clear();
            const auto weight = loader.experts(role);
            ASSERT_TRUE(weight.ok()) << weight.error().message;
            ASSERT_EQ(weight->experts, 4 / ranks);
            ASSERT_EQ(weight->packed.bytes(), part);
            EXPECT_EQ(std::memcmp(weight->packed.data(), static_cast<char*>(whole->packed.data()) + rank * part, part),
                      0)
                << role << ", rank " << rank << " of " << ranks << (format ? ", codes" : "");
            std::set<int> read;
            for (const std::string& name : checkpoint.asked) {
              read.insert(name.at(std::strlen("layers.0.mlp.experts.")) - '0');
            }
            EXPECT_EQ(std::ssize(read), 4 / ranks);
            EXPECT_EQ(*read.begin(), rank * 4 / ranks);
            EXPECT_EQ(*read.rbegin(), (rank + 1) * 4 / ranks - 1);
          }
        }
      }
    }
  }
}

// A layer of so many experts.
Decoder decoder_of_experts(int32_t experts) {
  Experts ffn;
  ffn.router.experts = experts;
  ffn.inner = 96;
  return decoder_of(128, ffn);
}

// A replica that has memory of its own loads its experts, in unequal numbers, with their biases, and everything else
// whole.
TEST_F(Loading, OfTheExpertsOfAReplica) {
  Decoder decoder = decoder_of_experts(5);
  Experts& experts = std::get<Experts>(decoder.layers[0].ffn);
  experts.bias = true;
  for (const bool interleaved : {false, true}) {
    experts.interleaved = interleaved;
    const std::vector<Param> list = layer_params(decoder, 0);
    const OneFormat checkpoint;
    WeightLoader whole_loader(*device_, checkpoint, numerics_, list);
    for (const int replicas : {1, 2, 3, 5}) {
      for (int replica = 0; replica < replicas; ++replica) {
        const auto [first, count] = experts_part(5, replica, replicas);
        const std::vector<Param> own = keep_experts_of(list, replica, replicas);
        WeightLoader loader(*device_, checkpoint, numerics_, own);
        for (const char* role : {"layers.0.experts_gate_up", "layers.0.experts_down"}) {
          const auto all = whole_loader.experts(role), some = loader.experts(role);
          ASSERT_TRUE(all.ok() && some.ok());
          ASSERT_EQ(some->experts, count);
          const auto each = static_cast<int64_t>(all->packed.bytes() / 5);
          ASSERT_EQ(static_cast<int64_t>(some->packed.bytes()), each * count);
          EXPECT_EQ(std::memcmp(some->packed.data(), static_cast<char*>(all->packed.data()) + each * first,
                                static_cast<size_t>(each * count)),
                    0)
              << role << ", replica " << replica << " of " << replicas;
        }
        for (const auto& [role, width] : std::map<std::string, int64_t>{{"layers.0.experts_gate_up_bias", 192},
                                                                        {"layers.0.experts_down_bias", 128}}) {
          const auto all = whole_loader.vector(role), some = loader.vector(role);
          ASSERT_TRUE(all.ok() && some.ok());
          ASSERT_EQ(some->view.count(), count * width);
          EXPECT_EQ(std::memcmp(some->view.data, all->view.as<float>() + first * width,
                                static_cast<size_t>(count * width) * sizeof(float)),
                    0)
              << role << ", replica " << replica << " of " << replicas;
        }
        for (size_t i = 0; i < list.size(); ++i) {
          if (own[i].role.find("experts") == std::string::npos) EXPECT_EQ(own[i].rows(), list[i].rows());
        }
      }
    }
  }
}

// The same experts, cut in four: 24 columns are no whole number of groups.
TEST_F(Loading, RefusesToCutExpertsInsideAGroup) {
  Decoder decoder = decoder_of_experts(4);
  Experts& experts = std::get<Experts>(decoder.layers[0].ffn);
  const OneFormat checkpoint(CodeFormat{.code = DType::kF4E2M1, .group = 32, .name = "codes"});
  for (const bool by_expert : {false, true}) {
    experts.by_expert = by_expert;
    const std::vector<Param> list = shard(layer_params(decoder, 0), 1, 4);
    WeightLoader loader(*device_, checkpoint, numerics_, list);
    const auto weight = loader.experts("layers.0.experts_down");
    ASSERT_EQ(weight.ok(), by_expert);
    if (by_expert) continue;
    EXPECT_THAT(weight.error().message, HasSubstr("after each 24: that must be a multiple of 16"));
    EXPECT_THAT(weight.error().message, HasSubstr("--enable-expert-parallel"));
  }
}

// Codes that no kernel multiplies directly are widened, and plain values can be divided anywhere.
TEST_F(Loading, OfCodesThatAreWidened) {
  const CodeFormat format = {.code = DType::kI4, .group = 32, .scattered = true, .name = "codes"};
  for (const int ranks : {2, 4}) check(down(88), OneFormat(format), ranks, "scattered");
}

std::string refusal(Device& device, const Param& param, const Numerics& numerics, const OneFormat& checkpoint) {
  const std::vector<Param> list = {shard({param}, 0, 4)[0]};
  WeightLoader loader(device, checkpoint, numerics, list);
  const auto weight = loader.linear(param.role);
  EXPECT_FALSE(weight.ok());
  if (weight.ok()) return "";
  EXPECT_EQ(weight.error().code, ErrorCode::kUnimplemented);
  return weight.error().message;
}

TEST_F(Loading, RefusesCutsInsideAGroup) {
  const CodeFormat format = {.code = DType::kF4E2M1, .group = 32, .name = "codes"};
  EXPECT_EQ(
      refusal(*device_, down(96), numerics_, OneFormat(format)),
      "--tensor-parallel-size cuts the columns of \"down.weight\" after each 24: that must be a multiple of 16, as "
      "so many share a scale in float4_e2m1/16. Use fewer ranks.");
  // Quantised while it loads: scales of a rank must be those of the whole model.
  const Numerics int4 = {DType::kF32, ops::kInt4Weights}, fp8 = {DType::kF32, ops::kFp8Weights};
  EXPECT_THAT(refusal(*device_, down(192), int4, OneFormat()), HasSubstr("multiple of 32"));
  EXPECT_THAT(refusal(*device_, down(256), fp8, OneFormat()), HasSubstr("multiple of 128"));
  numerics_ = int4;
  check(down(256), OneFormat(), 4, "quantised while it loads");
}

}  // namespace
}  // namespace volley::model
