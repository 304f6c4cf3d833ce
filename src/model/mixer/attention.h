// Grouped-query attention over paged K and V as a mixer.
#pragma once

#include "model/pass.h"
#include "model/weight_loader.h"

namespace volley::model {

// What attention needs of its model.
struct AttentionSetup {
  Attention spec;
  float norm_eps = 0;
  Numerics numerics;
  ops::RopeTables rope;
  size_t kv_layer = 0;  // which of Pass::kv
};

class AttentionBlock final : public MixerBlock {
 public:
  // prefix: of the layer's roles, "layers.3.". Errors as WeightLoader.
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const std::string& prefix,
                                                  const AttentionSetup& setup);

  const ops::LinearWeight& input_weight() const override { return qkv_; }
  void plan(Pass& pass) const override;
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  AttentionSetup setup_;
  Vector q_norm_, k_norm_, qkv_bias_, o_bias_, sinks_;
  ops::LinearWeight qkv_, o_;
};

}  // namespace volley::model
