#include "model/mixer/attention.h"

namespace volley::model {
namespace {

bool same_work(const AttentionPlan& plan, const Attention& spec) {
  return plan.heads == spec.heads && plan.kv_heads == spec.kv_heads && plan.head_dim == spec.head_dim &&
         plan.windowed == (spec.window > 0);
}

const AttentionPlan* find_plan(const Pass& pass, const Attention& spec) {
  for (const AttentionPlan& plan : pass.attention) {
    if (same_work(plan, spec)) return &plan;
  }
  return nullptr;
}

}  // namespace

ops::QkvWrite kv_write(const RowBatch& rows, const ops::KvLayer& kv, const ops::RopeTables& rope, float norm_eps) {
  ops::QkvWrite write;
  write.eps = norm_eps;
  write.rope = rope;
  write.rope_positions = rows.rope_positions;
  write.cache_positions = rows.cache_positions;
  write.row_slots = rows.slots;
  write.page_table = rows.page_table;
  write.segments = rows.segments.data();
  write.n_segments = static_cast<int32_t>(rows.segments.size());
  write.kv = kv;
  return write;
}

Result<std::unique_ptr<MixerBlock>> AttentionBlock::load(WeightLoader& loader, const std::string& prefix,
                                                         const AttentionSetup& setup) {
  auto block = std::make_unique<AttentionBlock>();
  block->setup_ = setup;
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "q_norm", block->q_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "k_norm", block->k_norm_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "qkv_bias", block->qkv_bias_));
  VOLLEY_ASSIGN(block->qkv_, loader.linear(prefix + "qkv"));
  VOLLEY_ASSIGN(block->o_, loader.linear(prefix + "o"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void AttentionBlock::plan(Pass& pass) const {
  const Attention& spec = setup_.spec;
  if (find_plan(pass, spec) != nullptr) return;
  const RowBatch& batch = pass.rows;
  const bool windowed = spec.window > 0;
  ops::AttentionRows rows;
  rows.rows = batch.rows;
  rows.visible_begin = windowed ? batch.window_begin : batch.visible_begin;
  rows.visible_end = windowed ? batch.window_end : batch.visible_end;
  rows.segments = batch.segments.data();
  rows.n_segments = static_cast<int32_t>(batch.segments.size());
  rows.cache_positions = batch.cache_positions;
  rows.max_segment_rows = batch.max_segment_rows;
  rows.max_positions = batch.max_positions;
  rows.heads = spec.heads;
  rows.kv_heads = spec.kv_heads;
  rows.head_dim = spec.head_dim;
  rows.dtype = pass.kv[setup_.kv_layer].dtype;
  rows.backend = setup_.numerics.attention;
  pass.attention.push_back(
      {spec.heads, spec.kv_heads, spec.head_dim, windowed, ops::plan_attention(pass.stream, rows, pass.scratch)});
}

void AttentionBlock::run(Pass& pass, const ops::ScaledRows& h, const Residual& x) const {
  const Attention& spec = setup_.spec;
  const RowBatch& batch = pass.rows;
  const ops::KvLayer& kv = pass.kv[setup_.kv_layer];
  const AttentionPlan* plan = find_plan(pass, spec);
  VOLLEY_CHECK(plan != nullptr);
  ArenaScope scope(pass.scratch);
  const TensorView a = pass.scratch.take(kv.dtype, {batch.rows, spec.q_width()});  // it runs in the type of the cache
  {
    ArenaScope attention_scope(pass.scratch);
    const TensorView qkv = pass.scratch.take(DType::kF32, {batch.rows, qkv_.n});
    ops::linear(pass.stream, qkv_, h, qkv, ops::Epilogue::kStore);
    ops::QkvWrite write = kv_write(batch, kv, setup_.rope, setup_.norm_eps);
    write.qkv = qkv;
    write.bias = qkv_bias_.view;
    write.q_norm = q_norm_.view;
    write.k_norm = k_norm_.view;
    write.heads = spec.heads;
    write.rows_ready = pass.positions_written;
    write.q_out = pass.scratch.take(kv.dtype, {batch.rows, spec.heads, spec.head_dim});
    ops::write_qkv(pass.stream, write);
    pass.positions_written = true;

    ops::Attention attention;
    attention.q = write.q_out;
    attention.heads = spec.heads;
    attention.scale = spec.scale;
    attention.visible_begin = plan->windowed ? batch.window_begin : batch.visible_begin;
    attention.visible_end = plan->windowed ? batch.window_end : batch.visible_end;
    attention.page_table = batch.page_table;
    attention.segments = batch.segments.data();
    attention.n_segments = static_cast<int32_t>(batch.segments.size());
    attention.max_segment_rows = batch.max_segment_rows;
    attention.max_positions = batch.max_positions;
    attention.work = plan->work;
    attention.after_write = true;
    attention.kv = kv;
    attention.out = a;
    ops::attention(pass.stream, attention, pass.scratch);
  }
  x.add(pass, o_, a);
}

}  // namespace volley::model
