// The gated network: down(silu(gate(x)) * up(x)), or with GELU.
#include "model/pass.h"

namespace volley::model {
namespace {

class DenseBlock final : public FfnBlock {
 public:
  DenseBlock(ops::LinearWeight gate_up, ops::LinearWeight down, ops::EndKind end, DType activation)
      : end_(end), activation_(activation), gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  const ops::LinearWeight& input_weight() const override { return gate_up_; }

  void run(Pass& pass, const ops::Input& h, const Residual& x) const override {
    ArenaScope scope(pass.scratch);
    const TensorView inner = pass.scratch.take(activation_, {pass.rows.rows, down_.k});
    ops::linear(pass.stream, gate_up_, h, inner, {end_}, pass.scratch);
    x.add(pass, down_, inner);
  }

 private:
  const ops::EndKind end_;
  const DType activation_;
  const ops::LinearWeight gate_up_, down_;
};

}  // namespace

template <>
Result<std::unique_ptr<FfnBlock>> load_block(WeightLoader& loader, const Dense& spec, const BlockSetup& setup) {
  VOLLEY_ASSIGN(ops::LinearWeight gate_up, loader.linear(setup.prefix + "gate_up"));
  VOLLEY_ASSIGN(ops::LinearWeight down, loader.linear(setup.prefix + "down"));
  const ops::EndKind end = spec.gelu ? ops::EndKind::kGeGlu : ops::EndKind::kSwiGlu;
  return std::unique_ptr<FfnBlock>(
      std::make_unique<DenseBlock>(std::move(gate_up), std::move(down), end, setup.numerics.activation));
}

}  // namespace volley::model
