// Latent attention as a mixer: its projections, in the absorbed form (ops/latent/latent.h), and attention between them.
#include "model/pass.h"
#include "ops/norm/norm.h"

namespace volley::model {
namespace {

class LatentBlock final : public PlacedBlock<Latent> {
 public:
  using PlacedBlock::PlacedBlock;
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const Latent& spec, const BlockSetup& setup);

  // Two weights read this input: plain rows can be converted to codes for one of them, but not codes to plain rows.
  const ops::LinearWeight& input_weight() const override {
    const ops::LinearWeight& q = spec_.q_rank > 0 ? q_a_ : q_;
    return kv_a_.format.multiplies_codes() && q.format != kv_a_.format ? q : kv_a_;
  }
  void plan(Pass& pass) const override { pass.plan_attention(shape_in(pass), ops::kWholeView); }
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  ops::HeadShape shape_in(const Pass& pass) const {
    const ops::LatentShape& shape = spec_.shape;
    return {.heads = shape.heads,
            .kv_heads = 1,
            .head_dim = shape.key(),
            .dtype = pass.kv[setup_.kv_layer].dtype,
            .backend = setup_.numerics.attention,
            .v_in_k = shape.width};
  }
  void make_q(Pass& pass, const ops::Input& h, TensorView q) const;

  Vector q_a_norm_, kv_a_norm_;
  ops::LinearWeight q_a_, q_, kv_a_, o_;
  ops::ExpertWeights head_keys_, head_values_;
};

Result<std::unique_ptr<MixerBlock>> LatentBlock::load(WeightLoader& loader, const Latent& spec,
                                                      const BlockSetup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_latent(spec.shape));
  auto block = std::make_unique<LatentBlock>(spec, setup);
  if (spec.q_rank > 0) {
    VOLLEY_ASSIGN(block->q_a_, loader.linear(setup.prefix + "q_a"));
    VOLLEY_ASSIGN(block->q_a_norm_, loader.vector(setup.prefix + "q_a_norm"));
  }
  VOLLEY_ASSIGN(block->q_, loader.linear(setup.prefix + "q"));
  VOLLEY_ASSIGN(block->kv_a_, loader.linear(setup.prefix + "kv_a"));
  VOLLEY_ASSIGN(block->kv_a_norm_, loader.vector(setup.prefix + "kv_a_norm"));
  VOLLEY_ASSIGN(block->head_keys_, loader.experts(setup.prefix + "head_keys"));
  VOLLEY_ASSIGN(block->head_values_, loader.experts(setup.prefix + "head_values"));
  VOLLEY_ASSIGN(block->o_, loader.linear(setup.prefix + "o"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

// q: [rows, heads * (nope + rope)].
void LatentBlock::make_q(Pass& pass, const ops::Input& h, TensorView q) const {
  if (spec_.q_rank == 0) return ops::linear(pass.stream, q_, h, q, {}, pass.scratch);
  ArenaScope scope(pass.scratch);
  const int64_t rows = pass.rows.rows;
  const TensorView narrow = pass.scratch.take(DType::kF32, {rows, spec_.q_rank});
  ops::linear(pass.stream, q_a_, h, narrow, {}, pass.scratch);
  const ops::Input normed = ops::input_for(q_, setup_.numerics.activation, rows, pass.scratch);
  ops::rms_norm(pass.stream, narrow, q_a_norm_.view, spec_.norm_eps, {}, normed);
  ops::linear(pass.stream, q_, normed, q, {}, pass.scratch);
}

void LatentBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::LatentShape& shape = spec_.shape;
  const int64_t rows = pass.rows.rows, heads = shape.heads;
  const ops::RowView& view = pass.rows.views[ops::kWholeView];
  const ops::KvLayer& kv = pass.kv[setup_.kv_layer];
  const DType dtype = ops::attention_dtype(kv.dtype);  // the cache's type decides, not the activations'
  ArenaScope scope(pass.scratch);
  const TensorView out = pass.scratch.take(setup_.numerics.activation, {rows, heads, shape.value});
  {
    ArenaScope attention_scope(pass.scratch);
    const TensorView q = pass.scratch.take(setup_.numerics.activation, {rows, heads, shape.query()});
    ops::LatentWrite write;
    write.row = pass.scratch.take(DType::kF32, {rows, shape.key()});
    write.norm = kv_a_norm_.view;
    write.eps = spec_.norm_eps;
    write.rope = pass.rope(setup_.ropes, spec_.rope);
    write.q = q;
    write.q_out = pass.scratch.take(dtype, {rows, heads, shape.key()});
    write.kv = kv;
    write.growth = spec_.growth;
    make_q(pass, h, TensorView(q.data, q.dtype, {rows, heads * shape.query()}));
    ops::linear(pass.stream, kv_a_, h, write.row, {}, pass.scratch);
    ops::head_linear(pass.stream, head_keys_, q, write.q_out);
    ops::write_latent(pass.stream, pass.rows, view, write);
    pass.positions_written = true;

    ops::Attention attention;
    attention.q = write.q_out;
    attention.heads = shape.heads;
    attention.scale = spec_.scale;
    attention.work = pass.attention_work(shape_in(pass), ops::kWholeView);
    attention.after_write = true;
    attention.kv = kv;
    attention.out = pass.scratch.take(dtype, {rows, heads, shape.width});
    ops::attention(pass.stream, pass.rows, view, attention, pass.scratch);
    ops::head_linear(pass.stream, head_values_, attention.out, out);
  }
  x.add(pass, o_, TensorView(out.data, out.dtype, {rows, heads * shape.value}));
}

}  // namespace

template <>
Result<std::unique_ptr<MixerBlock>> load_block(WeightLoader& loader, const Latent& spec, const BlockSetup& setup) {
  return LatentBlock::load(loader, spec, setup);
}

}  // namespace volley::model
