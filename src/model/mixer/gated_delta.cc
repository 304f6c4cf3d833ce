// The gated delta rule as a mixer: its projections, and the operation between them.
#include "model/pass.h"

namespace volley::model {
namespace {

class GatedDeltaBlock final : public PlacedBlock<GatedDelta> {
 public:
  using PlacedBlock::PlacedBlock;
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const GatedDelta& spec,
                                                  const BlockSetup& setup);

  // Both weights read this input: plain rows can be converted to codes for one of them, but not codes to plain rows.
  const ops::LinearWeight& input_weight() const override {
    return in_.format.multiplies_codes() && gates_.format != in_.format ? gates_ : in_;
  }
  void plan(Pass& pass) const override {}
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  Vector conv_, a_log_, dt_bias_, norm_;
  ops::LinearWeight in_, gates_, out_;
};

Result<std::unique_ptr<MixerBlock>> GatedDeltaBlock::load(WeightLoader& loader, const GatedDelta& spec,
                                                          const BlockSetup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_delta_shape(spec.shape));
  auto block = std::make_unique<GatedDeltaBlock>(spec, setup);
  VOLLEY_ASSIGN(block->conv_, loader.vector(setup.prefix + "delta_conv"));
  VOLLEY_ASSIGN(block->a_log_, loader.vector(setup.prefix + "delta_a_log"));
  VOLLEY_ASSIGN(block->dt_bias_, loader.vector(setup.prefix + "delta_dt_bias"));
  VOLLEY_ASSIGN(block->norm_, loader.vector(setup.prefix + "delta_norm"));
  VOLLEY_ASSIGN(block->in_, loader.linear(setup.prefix + "delta_in"));
  VOLLEY_ASSIGN(block->gates_, loader.linear(setup.prefix + "delta_gates"));
  VOLLEY_ASSIGN(block->out_, loader.linear(setup.prefix + "delta_out"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void GatedDeltaBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::DeltaShape& shape = spec_.shape;
  const int64_t rows = pass.rows.rows;
  ArenaScope scope(pass.scratch);
  ops::GatedDelta delta;
  delta.shape = shape;
  delta.projected = pass.scratch.take(setup_.numerics.activation, {rows, in_.n});
  delta.gates = pass.scratch.take(DType::kF32, {rows, gates_.n});
  delta.conv = conv_.view;
  delta.a_log = a_log_.view;
  delta.dt_bias = dt_bias_.view;
  delta.norm = norm_.view;
  delta.eps = setup_.norm_eps;
  delta.state = pass.states[setup_.state];
  delta.out = pass.scratch.take(setup_.numerics.activation, {rows, shape.v_width()});
  ops::linear(pass.stream, in_, h, delta.projected, {}, pass.scratch);
  ops::linear(pass.stream, gates_, h, delta.gates, {}, pass.scratch);
  ops::gated_delta(pass.stream, pass.rows, delta, pass.scratch);
  x.add(pass, out_, delta.out);
}

}  // namespace

template <>
Result<std::unique_ptr<MixerBlock>> load_block(WeightLoader& loader, const GatedDelta& spec, const BlockSetup& setup) {
  return GatedDeltaBlock::load(loader, spec, setup);
}

}  // namespace volley::model
