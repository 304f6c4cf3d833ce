// The SwiGLU network: down(silu(gate(x)) * up(x)).
#pragma once

#include "model/pass.h"
#include "model/weight_loader.h"

namespace volley::model {

class DenseBlock final : public FfnBlock {
 public:
  // prefix: of the layer's roles, "layers.3.". Errors as WeightLoader.
  static Result<std::unique_ptr<FfnBlock>> load(WeightLoader& loader, const std::string& prefix, DType activation);

  const ops::LinearWeight& input_weight() const override { return gate_up_; }
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  DType activation_ = DType::kBF16;
  ops::LinearWeight gate_up_, down_;
};

}  // namespace volley::model
