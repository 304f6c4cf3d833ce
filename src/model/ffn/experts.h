// A mixture of SwiGLU networks: a router chooses top_k experts a row, and their outputs are added by its weights, in
// the order of their scores; then a shared one, which every row goes through, where there is one.
//
// With Pass::exchange replicas have the rows of a layer in common: each routes its own, all of them go to the replica
// whose experts they chose, and what these make of them comes back unweighted. So a row's sum is added where the row
// is, in the order of its scores, and has the bits that it has without other replicas.
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
    bool counts = true;  // the experts touched: where parts of a layer route to the same ones, one does
  };
  // prefix: of the layer's roles, "layers.3.". Errors as WeightLoader, and ops::check_router()'s.
  static Result<std::unique_ptr<FfnBlock>> load(WeightLoader& loader, const std::string& prefix, const Setup& setup);

  const ops::LinearWeight& input_weight() const override { return router_; }
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  ops::RouteCall route_call(const Pass& pass) const;
  ops::EndKind activation_end() const;
  ops::Routing take_own_routing(Pass& pass) const;
  void run_with_others(Pass& pass, const ops::Input& h, TensorView x) const;
  void add_shared(Pass& pass, const ops::Input& h, const Residual& x) const;

  Setup setup_;
  ops::LinearWeight router_;
  ops::ExpertWeights gate_up_, down_;
  Vector router_bias_, gate_up_bias_, down_bias_;                 // where there are biases
  ops::LinearWeight shared_gate_, shared_gate_up_, shared_down_;  // where there is a shared expert
};

}  // namespace volley::model
