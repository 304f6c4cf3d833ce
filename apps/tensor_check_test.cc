// The list of tensors that is checked without loading is the very one that loading asks for: the two are written down
// in different places, and would drift apart.
#include "apps/tensor_check.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/draft_network.h"
#include "model/target.h"

namespace volley::apps {
namespace {

constexpr const char* kTarget = "models/pocket";
constexpr const char* kDraft = "models/pocket-dflash";

// Remembers what it was asked for; can lack a tensor.
class Recorder final : public weights::Checkpoint {
 public:
  explicit Recorder(const std::string& dir, std::string lacks = "")
      : inner_(weights::open_safetensors(dir).value()), lacks_(std::move(lacks)) {}

  bool has(std::string_view name) const override { return name != lacks_ && inner_->has(name); }
  Result<weights::SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    asked_[std::string(name)] = {shape.begin(), shape.end()};
    if (name == lacks_) return not_found("no " + lacks_);
    return inner_->get(name, shape);
  }
  DType main_dtype() const override { return inner_->main_dtype(); }

  const std::map<std::string, std::vector<int64_t>>& asked() const { return asked_; }

 private:
  std::unique_ptr<weights::Checkpoint> inner_;
  std::string lacks_;
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
  EXPECT_EQ(*count, static_cast<int64_t>(checked.asked().size()));
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

}  // namespace
}  // namespace volley::apps
