#include "model/mixer/attention.h"

#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace volley::model {
namespace {

int view_of(const Attention& spec) {
  return spec.window > 0 ? ops::kWindowView : ops::kWholeView;
}

bool same_work(const AttentionPlan& plan, const Attention& spec) {
  return plan.heads == spec.heads && plan.kv_heads == spec.kv_heads && plan.head_dim == spec.head_dim &&
         plan.view == view_of(spec);
}

const AttentionPlan* find_plan(const Pass& pass, const Attention& spec) {
  for (const AttentionPlan& plan : pass.attention) {
    if (same_work(plan, spec)) return &plan;
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<MixerBlock>> AttentionBlock::load(WeightLoader& loader, const std::string& prefix,
                                                         const AttentionSetup& setup) {
  auto block = std::make_unique<AttentionBlock>();
  block->setup_ = setup;
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "q_norm", block->q_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "k_norm", block->k_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "qkv_bias", block->qkv_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "o_bias", block->o_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "sinks", block->sinks_));
  VOLLEY_ASSIGN(block->qkv_, loader.linear(prefix + "qkv"));
  VOLLEY_ASSIGN(block->o_, loader.linear(prefix + "o"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void AttentionBlock::plan(Pass& pass) const {
  const Attention& spec = setup_.spec;
  if (find_plan(pass, spec) != nullptr) return;
  const int view = view_of(spec);
  const ops::HeadShape shape = {spec.heads, spec.kv_heads, spec.head_dim, pass.kv[setup_.kv_layer].dtype,
                                setup_.numerics.attention};
  pass.attention.push_back({spec.heads, spec.kv_heads, spec.head_dim, view,
                            ops::plan_attention(pass.stream, pass.rows, pass.rows.views[view], shape, pass.scratch)});
}

void AttentionBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const Attention& spec = setup_.spec;
  const ops::Rows& rows = pass.rows;
  const ops::RowView& view = rows.views[view_of(spec)];
  const ops::KvLayer& kv = pass.kv[setup_.kv_layer];
  const AttentionPlan* plan = find_plan(pass, spec);
  VOLLEY_CHECK(plan != nullptr);
  ArenaScope scope(pass.scratch);
  const DType dtype = ops::attention_dtype(kv.dtype);  // the cache's type decides, not the activations'
  const TensorView a = pass.scratch.take(dtype, {rows.rows, spec.q_width()});
  {
    ArenaScope attention_scope(pass.scratch);
    const TensorView qkv = pass.scratch.take(DType::kF32, {rows.rows, qkv_.n});
    ops::linear(pass.stream, qkv_, h, qkv, {}, pass.scratch);
    ops::QkvWrite write;
    write.qkv = qkv;
    write.bias = qkv_bias_.view;
    write.q_norm = q_norm_.view;
    write.k_norm = k_norm_.view;
    write.eps = setup_.norm_eps;
    write.rope = setup_.rope;
    write.heads = spec.heads;
    write.kv = kv;
    write.rows_ready = pass.positions_written;
    write.q_out = pass.scratch.take(dtype, {rows.rows, spec.heads, spec.head_dim});
    ops::write_qkv(pass.stream, rows, view, write);
    pass.positions_written = true;

    ops::Attention attention;
    attention.q = write.q_out;
    attention.heads = spec.heads;
    attention.scale = spec.scale;
    attention.work = plan->work;
    attention.after_write = true;
    attention.kv = kv;
    attention.sinks = sinks_.view;
    attention.out = a;
    ops::attention(pass.stream, rows, view, attention, pass.scratch);
    if (spec.gate) ops::sigmoid_gate(pass.stream, a, qkv, spec.q_width() + 2 * spec.kv_width());
  }
  x.add(pass, o_, a, o_bias_.view);
}

}  // namespace volley::model
