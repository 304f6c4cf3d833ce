// The gated delta rule as a mixer: its projections, and the operation between them.
#pragma once

#include "model/pass.h"
#include "model/weight_loader.h"

namespace volley::model {

class GatedDeltaBlock final : public MixerBlock {
 public:
  struct Setup {
    GatedDelta spec;
    float norm_eps = 0;
    DType activation = DType::kBF16;
    size_t state = 0;  // which of Pass::states
  };
  // prefix: of the layer's roles, "layers.3.". Errors as WeightLoader, and ops::check_delta_shape()'s.
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const std::string& prefix, const Setup& setup);

  // Both weights read it: plain rows become codes where one needs them, but not the other way round.
  const ops::LinearWeight& input_weight() const override {
    return in_.format.multiplies_codes() && gates_.format != in_.format ? gates_ : in_;
  }
  void plan(Pass& pass) const override {}
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  Setup setup_;
  Vector conv_, a_log_, dt_bias_, norm_;
  ops::LinearWeight in_, gates_, out_;
};

}  // namespace volley::model
