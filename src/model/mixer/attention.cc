// Grouped-query attention over paged K and V as a mixer.
#include "model/pass.h"
#include "ops/embedding/embedding.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"
#include "ops/wide_norm/wide_norm.h"

namespace volley::model {
namespace {

class AttentionBlock final : public PlacedBlock<Attention> {
 public:
  using PlacedBlock::PlacedBlock;
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const Attention& spec, const BlockSetup& setup);

  const ops::LinearWeight& input_weight() const override { return qkv_; }
  void plan(Pass& pass) const override;
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  ops::HeadShape shape_in(const Pass& pass) const {
    return {spec_.heads, spec_.kv_heads, spec_.head_dim, pass.kv[setup_.kv_layer].dtype, setup_.numerics.attention};
  }

  // Norms all heads of q, and all of k. The ranks' sums are added.
  void norm_heads_together(Pass& pass, TensorView qkv, const Residual& x) const;

  Vector q_norm_, k_norm_, qkv_bias_, o_bias_, sinks_;
  ops::LinearWeight qkv_, o_;
};

int view_of(const Attention& spec) {
  return spec.window > 0 ? ops::kWindowView : ops::kWholeView;
}

Result<std::unique_ptr<MixerBlock>> AttentionBlock::load(WeightLoader& loader, const Attention& spec,
                                                         const BlockSetup& setup) {
  auto block = std::make_unique<AttentionBlock>(spec, setup);
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + "q_norm", block->q_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + "k_norm", block->k_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + "qkv_bias", block->qkv_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + "o_bias", block->o_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + "sinks", block->sinks_));
  VOLLEY_ASSIGN(block->qkv_, loader.linear(setup.prefix + "qkv"));
  VOLLEY_ASSIGN(block->o_, loader.linear(setup.prefix + "o"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void AttentionBlock::plan(Pass& pass) const {
  pass.plan_attention(shape_in(pass), view_of(spec_));
}

void AttentionBlock::norm_heads_together(Pass& pass, TensorView qkv, const Residual& x) const {
  ArenaScope scope(pass.scratch);
  const auto take_sums = [&] { return pass.scratch.take(DType::kF32, {qkv.dim(0), ops::WideNorm::kSums}); };
  ops::WideNorm norm = {.x = qkv,
                        .parts = {{0, q_norm_.view}, {spec_.q_width(), k_norm_.view}},
                        .sums = take_sums(),
                        .eps = setup_.norm_eps};
  ops::sum_squares(pass.stream, norm);
  if (x.is_shared()) {
    const TensorView own = norm.sums;
    norm.sums = take_sums();
    ops::zero(pass.stream, norm.sums);
    x.group->add_sum(pass.stream, own, norm.sums);
  }
  ops::norm_by_sums(pass.stream, norm, x.is_shared() ? x.group->ranks() : 1);
}

void AttentionBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::Rows& rows = pass.rows;
  const ops::RowView& view = rows.views[view_of(spec_)];
  const ops::KvLayer& kv = pass.kv[setup_.kv_layer];
  ArenaScope scope(pass.scratch);
  const DType dtype = ops::attention_dtype(kv.dtype);  // the cache's type decides, not the activations'
  const TensorView a = pass.scratch.take(dtype, {rows.rows, spec_.q_width()});
  {
    ArenaScope attention_scope(pass.scratch);
    const TensorView qkv = pass.scratch.take(DType::kF32, {rows.rows, qkv_.n});
    ops::linear(pass.stream, qkv_, h, qkv, {}, pass.scratch);
    ops::QkvWrite write;
    write.qkv = qkv;
    write.bias = qkv_bias_.view;
    if (spec_.wide_norm) {
      norm_heads_together(pass, qkv, x);
    } else {
      write.q_norm = q_norm_.view;
      write.k_norm = k_norm_.view;
    }
    write.v_norm = spec_.v_norm;
    write.v_from_k = spec_.v_from_k;
    write.eps = setup_.norm_eps;
    write.rope = pass.rope(setup_.ropes, spec_.rope);
    write.heads = spec_.heads;
    write.kv = kv;
    write.rows_ready = pass.positions_written;
    write.q_out = pass.scratch.take(dtype, {rows.rows, spec_.heads, spec_.head_dim});
    ops::write_qkv(pass.stream, rows, view, write);
    pass.positions_written = true;

    ops::Attention attention;
    attention.q = write.q_out;
    attention.heads = spec_.heads;
    attention.scale = spec_.scale;
    attention.work = pass.attention_work(shape_in(pass), view_of(spec_));
    attention.after_write = true;
    attention.kv = kv;
    attention.sinks = sinks_.view;
    attention.out = a;
    ops::attention(pass.stream, rows, view, attention, pass.scratch);
    if (spec_.gate) ops::sigmoid_gate(pass.stream, a, qkv, int64_t{write.source_heads()} * spec_.head_dim);
  }
  x.add(pass, o_, a, o_bias_.view);
}

}  // namespace

template <>
Result<std::unique_ptr<MixerBlock>> load_block(WeightLoader& loader, const Attention& spec, const BlockSetup& setup) {
  return AttentionBlock::load(loader, spec, setup);
}

}  // namespace volley::model
