// A mixture of SwiGLU networks: a router chooses top_k experts a row, and their outputs are added by its weights, in
// the order of their scores; then a shared one, which every row goes through, where there is one.
#pragma once

#include "model/pass.h"
#include "model/weight_loader.h"

namespace volley::model {

class ExpertsBlock final : public FfnBlock {
 public:
  struct Setup {
    Experts spec;
    DType activation = DType::kBF16;
    uint32_t layer = 0;  // its number: what made-up and recorded routing go by
  };
  // prefix: of the layer's roles, "layers.3.". Errors as WeightLoader, and ops::check_router()'s.
  static Result<std::unique_ptr<FfnBlock>> load(WeightLoader& loader, const std::string& prefix, const Setup& setup);

  const ops::LinearWeight& input_weight() const override { return router_; }
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  void add_shared(Pass& pass, const ops::Input& h, const Residual& x) const;

  Setup setup_;
  ops::LinearWeight router_;
  ops::ExpertWeights gate_up_, down_;
  Vector router_bias_, gate_up_bias_, down_bias_;                 // where there are biases
  ops::LinearWeight shared_gate_, shared_gate_up_, shared_down_;  // where there is a shared expert
};

}  // namespace volley::model
