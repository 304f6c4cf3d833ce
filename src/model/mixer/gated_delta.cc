#include "model/mixer/gated_delta.h"

namespace volley::model {

Result<std::unique_ptr<MixerBlock>> GatedDeltaBlock::load(WeightLoader& loader, const std::string& prefix,
                                                          const Setup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_delta_shape(setup.spec.shape));
  auto block = std::make_unique<GatedDeltaBlock>();
  block->setup_ = setup;
  VOLLEY_ASSIGN(block->conv_, loader.vector(prefix + "delta_conv"));
  VOLLEY_ASSIGN(block->a_log_, loader.vector(prefix + "delta_a_log"));
  VOLLEY_ASSIGN(block->dt_bias_, loader.vector(prefix + "delta_dt_bias"));
  VOLLEY_ASSIGN(block->norm_, loader.vector(prefix + "delta_norm"));
  VOLLEY_ASSIGN(block->in_, loader.linear(prefix + "delta_in"));
  VOLLEY_ASSIGN(block->gates_, loader.linear(prefix + "delta_gates"));
  VOLLEY_ASSIGN(block->out_, loader.linear(prefix + "delta_out"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void GatedDeltaBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::DeltaShape& shape = setup_.spec.shape;
  const int64_t rows = pass.rows.rows;
  ArenaScope scope(pass.scratch);
  ops::GatedDelta delta;
  delta.shape = shape;
  delta.projected = pass.scratch.take(setup_.activation, {rows, in_.n});
  delta.gates = pass.scratch.take(DType::kF32, {rows, gates_.n});
  delta.conv = conv_.view;
  delta.a_log = a_log_.view;
  delta.dt_bias = dt_bias_.view;
  delta.norm = norm_.view;
  delta.eps = setup_.norm_eps;
  delta.state = pass.states[setup_.state];
  delta.out = pass.scratch.take(setup_.activation, {rows, shape.v_width()});
  ops::linear(pass.stream, in_, h, delta.projected, {}, pass.scratch);
  ops::linear(pass.stream, gates_, h, delta.gates, {}, pass.scratch);
  ops::gated_delta(pass.stream, pass.rows, delta, pass.scratch);
  x.add(pass, out_, delta.out);
}

}  // namespace volley::model
