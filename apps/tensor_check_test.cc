// The list of tensors that is checked without loading is the very one that loading asks for: the two are written down
// in different places, and would drift apart.
#include "apps/tensor_check.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/draft_network.h"
#include "model/target.h"

namespace volley::apps {
namespace {

constexpr const char* kTarget = "models/pocket";
constexpr const char* kDraft = "models/pocket-dflash";

using Names = std::set<std::string, std::less<>>;

// Remembers what it was asked for; can lack a tensor.
class Recorder final : public weights::Checkpoint {
 public:
  explicit Recorder(const std::string& dir, std::string lacks = "")
      : inner_(weights::open_safetensors(dir).value()), lacks_(std::move(lacks)) {}
  // Says of these tensors that they are F32; their values must not be read.
  Recorder(const std::string& dir, Names float32) : Recorder(dir) { float32_ = std::move(float32); }

  bool has(std::string_view name) const override { return name != lacks_ && inner_->has(name); }
  Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    asked_[std::string(name)] = {shape.begin(), shape.end()};
    if (name == lacks_) return not_found("no " + lacks_);
    auto tensor = inner_->get(name, shape);
    if (tensor.ok() && float32_.count(name) > 0) tensor->dtype = DType::kF32;
    return tensor;
  }
  DType main_dtype() const override { return inner_->main_dtype(); }

  const std::map<std::string, std::vector<int64_t>>& asked() const { return asked_; }

 private:
  std::unique_ptr<weights::Checkpoint> inner_;
  std::string lacks_;
  Names float32_;
  mutable std::map<std::string, std::vector<int64_t>> asked_;
};

TEST(TensorCheck, AsksForWhatLoadingAsksFor) {
  const auto device = make_cpu_device(1).value();
  const model::DecoderSpec target = model::read_decoder_spec(kTarget).value();
  const auto loaded = std::make_shared<Recorder>(kTarget);
  const model::Numerics numerics = model::resolve_numerics(ComputeType::kAuto, loaded->main_dtype());
  ASSERT_TRUE(model::Target::load(*device, loaded, target, numerics, 64, {}).ok());
  const Recorder checked(kTarget);
  const auto count = check_tensors(checked, target);
  ASSERT_TRUE(count.ok()) << count.error().message;
  EXPECT_EQ(count->count, static_cast<int64_t>(checked.asked().size()));
  EXPECT_EQ(checked.asked(), loaded->asked());
}

TEST(TensorCheck, AsksForWhatLoadingADrafterAsksFor) {
  const auto device = make_cpu_device(1).value();
  const model::DraftSpec draft = model::read_draft_spec(kDraft).value();
  const auto loaded = std::make_shared<Recorder>(kDraft);
  const model::Numerics numerics = model::resolve_numerics(ComputeType::kAuto, loaded->main_dtype());
  ASSERT_TRUE(model::DraftNetwork::load(*device, loaded, draft, numerics, 64, {}).ok());
  const Recorder checked(kDraft);
  const auto count = check_tensors(checked, draft);
  ASSERT_TRUE(count.ok()) << count.error().message;
  EXPECT_EQ(checked.asked(), loaded->asked());
}

TEST(TensorCheck, NamesTheTensorThatIsMissing) {
  const model::DecoderSpec target = model::read_decoder_spec(kTarget).value();
  const auto count = check_tensors(Recorder(kTarget, "model.norm.weight"), target);
  ASSERT_FALSE(count.ok());
  EXPECT_EQ(count.error().code, ErrorCode::kNotFound);
}

TEST(TensorCheck, CountsTensorsOfWrongShape) {
  model::DecoderSpec target = model::read_decoder_spec(kTarget).value();
  target.intermediate += 1;
  const auto count = check_tensors(Recorder(kTarget), target);
  ASSERT_FALSE(count.ok());
  EXPECT_TRUE(count.error().message.starts_with(std::to_string(3 * target.layers.size()) + " of "))
      << count.error().message;
}

// What inspect says of a checkpoint of two types is what loading makes of it.
TEST(TensorCheck, AddsUpWhatLoadingStores) {
  const model::DraftSpec draft = model::read_draft_spec(kDraft).value();
  const Recorder plain(kDraft), mixed(kDraft, Names{"layers.1.self_attn.k_proj.weight"});
  const model::Numerics float32 = model::resolve_numerics(ComputeType::kFloat32, DType::kBF16);
  const BytesOfType all = stored_bytes(check_tensors(plain, draft)->matrices, float32);
  ASSERT_EQ(all.size(), 1u);
  const auto device = make_cpu_device(1).value();
  const auto loaded = model::DraftNetwork::load(*device, std::make_shared<Recorder>(kDraft), draft, float32, 64, {});
  EXPECT_EQ(all.at(DType::kBF16), (*loaded)->packed_bytes());

  const model::DecoderSpec& layers = draft.decoder;
  const int64_t kv = 2 * int64_t{layers.kv_heads} * layers.head_dim * layers.hidden;
  const int64_t qkv = int64_t{layers.heads} * layers.head_dim * layers.hidden + kv;
  const int64_t widened = qkv + std::ssize(layers.layers) * kv;  // and k and v of all layers for the injection
  const NeededTensors needed = check_tensors(mixed, draft).value();
  EXPECT_EQ(stored_bytes(needed.matrices, float32),
            (BytesOfType{{DType::kF32, 4 * widened}, {DType::kBF16, all.at(DType::kBF16) - 2 * widened}}));
  const model::Numerics bfloat16 = model::resolve_numerics(ComputeType::kBFloat16, DType::kBF16);
  EXPECT_EQ(stored_bytes(needed.matrices, bfloat16), all);
  EXPECT_EQ(needed.bytes.at(DType::kF32), 4 * kv / 2);
}

}  // namespace
}  // namespace volley::apps
