#include "model/decoder_layers.h"

#include <algorithm>
#include <cmath>

namespace volley::model {

void product(Stream& stream, const ops::LinearWeight& w, TensorView x, TensorView y, ops::Epilogue epilogue,
             Arena& scratch) {
  if (w.storage != DType::kF8E4M3) return ops::linear(stream, w, x, y, epilogue);
  ArenaScope scope(scratch);
  const ops::ScaledRows codes = ops::take_rows(scratch, DType::kF8E4M3, x.shape[0], w.k);
  ops::quantise_rows(stream, x, codes);
  ops::linear(stream, w, codes, y, epilogue);
}

ops::ScaledRows take_input(DType storage, DType activation, int64_t rows, int64_t k, Arena& scratch) {
  return ops::take_rows(scratch, storage == DType::kF8E4M3 ? storage : activation, rows, k);
}

Result<Rope> make_rope(Device& device, const RopeSpec& spec, int32_t head_dim, int64_t positions) {
  const RopeValues values = rope_values(spec, head_dim, positions);
  Rope rope;
  const int64_t half = head_dim / 2;
  VOLLEY_ASSIGN(rope.buffer, device.allocate(static_cast<size_t>(2 * positions * half) * sizeof(float)));
  const TensorView both = rope.buffer.view(DType::kF32, {2 * positions, half});
  rope.tables = {both.rows(0, positions), both.rows(positions, positions)};
  device.upload(rope.tables.cos.data, values.cos.data(), values.cos.size() * sizeof(float));
  device.upload(rope.tables.sin.data, values.sin.data(), values.sin.size() * sizeof(float));
  return rope;
}

Result<DecoderLayers> DecoderLayers::load(Device& device, WeightLoader& loader, const DecoderSpec& spec,
                                          Numerics numerics, int64_t positions) {
  DecoderLayers layers;
  layers.spec_ = spec;
  layers.numerics_ = numerics;
  VOLLEY_ASSIGN(layers.rope_, make_rope(device, spec.rope, spec.head_dim, positions));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    VOLLEY_ASSIGN(Layer layer, load_layer(loader, spec, static_cast<int>(i)));
    layers.layers_.push_back(std::move(layer));
  }
  return layers;
}

Result<DecoderLayers::Layer> DecoderLayers::load_layer(WeightLoader& loader, const DecoderSpec& spec, int index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t q_rows = int64_t{spec.heads} * spec.head_dim, kv_rows = int64_t{spec.kv_heads} * spec.head_dim;
  Layer layer;
  VOLLEY_ASSIGN(layer.input_norm, loader.vector(prefix + "input_layernorm.weight", spec.hidden));
  VOLLEY_ASSIGN(layer.post_norm, loader.vector(prefix + "post_attention_layernorm.weight", spec.hidden));
  if (spec.qk_norm) {
    VOLLEY_ASSIGN(layer.q_norm, loader.vector(attention + "q_norm.weight", spec.head_dim));
    VOLLEY_ASSIGN(layer.k_norm, loader.vector(attention + "k_norm.weight", spec.head_dim));
  }
  VOLLEY_ASSIGN(layer.qkv, loader.linear({{attention + "q_proj.weight", q_rows},
                                          {attention + "k_proj.weight", kv_rows},
                                          {attention + "v_proj.weight", kv_rows}},
                                         spec.hidden));
  VOLLEY_ASSIGN(layer.o, loader.linear({{attention + "o_proj.weight", spec.hidden}}, q_rows));
  VOLLEY_ASSIGN(layer.gate_up, loader.linear({{mlp + "gate_proj.weight", spec.intermediate},
                                              {mlp + "up_proj.weight", spec.intermediate}},
                                             spec.hidden, ops::LinearLayout::kGateUp));
  VOLLEY_ASSIGN(layer.down, loader.linear({{mlp + "down_proj.weight", spec.hidden}}, spec.intermediate));
  return layer;
}

Status DecoderLayers::load_injection(WeightLoader& loader) {
  const int64_t kv_rows = int64_t{spec_.kv_heads} * spec_.head_dim;
  std::vector<WeightLoader::Matrix> matrices;
  std::vector<std::string> norms;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string attention = "layers." + std::to_string(i) + ".self_attn.";
    matrices.push_back({attention + "k_proj.weight", kv_rows});
    matrices.push_back({attention + "v_proj.weight", kv_rows});
    norms.push_back(attention + "k_norm.weight");
  }
  VOLLEY_ASSIGN(injection_.kv, loader.linear(matrices, spec_.hidden));
  if (spec_.qk_norm) {
    VOLLEY_ASSIGN(injection_.k_norm, loader.vectors(norms, spec_.head_dim));
  }
  return {};
}

ops::QkvWrite DecoderLayers::kv_write(const RowBatch& batch, const ops::KvLayer& kv) const {
  ops::QkvWrite write;
  write.eps = spec_.norm_eps;
  write.rope = rope_.tables;
  write.rope_positions = batch.rope_positions;
  write.cache_positions = batch.cache_positions;
  write.row_slots = batch.slots;
  write.page_table = batch.page_table;
  write.segments = batch.segments.data();
  write.n_segments = static_cast<int32_t>(batch.segments.size());
  write.kv = kv;
  return write;
}

namespace {

ops::AttentionRows attention_rows(const DecoderSpec& spec, DType kv) {
  ops::AttentionRows rows;
  rows.heads = spec.heads;
  rows.kv_heads = spec.kv_heads;
  rows.head_dim = spec.head_dim;
  rows.dtype = kv;
  return rows;
}

bool has_layers(const DecoderSpec& spec, LayerSpec::Attention kind) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [&](const auto& layer) { return layer.attention == kind; });
}

}  // namespace

void DecoderLayers::plan(Stream& stream, RowBatch& batch, const ops::KvLayer& kv, Arena& scratch) const {
  ops::AttentionRows rows = attention_rows(spec_, kv.dtype);
  rows.backend = numerics_.attention;
  rows.rows = batch.rows;
  rows.segments = batch.segments.data();
  rows.n_segments = static_cast<int32_t>(batch.segments.size());
  rows.cache_positions = batch.cache_positions;
  rows.max_segment_rows = batch.max_segment_rows;
  rows.max_positions = batch.max_positions;
  if (has_layers(spec_, LayerSpec::Attention::kFull)) {
    rows.visible_begin = batch.visible_begin;
    rows.visible_end = batch.visible_end;
    batch.work = ops::plan_attention(stream, rows, scratch);
  }
  if (has_layers(spec_, LayerSpec::Attention::kSlidingWindow)) {
    rows.visible_begin = batch.window_begin;
    rows.visible_end = batch.window_end;
    batch.window_work = ops::plan_attention(stream, rows, scratch);
  }
}

void DecoderLayers::forward(Stream& stream, int index, const RowBatch& batch, const ops::KvLayer& kv, TensorView x,
                            Arena& scratch, const ops::FeatureBlock& features) const {
  const Layer& layer = layers_[index];
  const bool windowed = spec_.layers[index].attention == LayerSpec::Attention::kSlidingWindow;
  const int64_t rows = batch.rows;
  const int64_t q_width = int64_t{spec_.heads} * spec_.head_dim;
  ArenaScope scope(scratch);
  const ops::ScaledRows h =
      take_input(layer.qkv.storage, activation(), rows, spec_.hidden, scratch);  // of gate and up too
  ops::rms_norm(stream, x, layer.input_norm.view, spec_.norm_eps, {}, h, features);
  const TensorView a = scratch.take(kv.dtype, {rows, q_width});  // attention runs in the type of the cache
  {
    ArenaScope attention_scope(scratch);
    const TensorView qkv = scratch.take(DType::kF32, {rows, layer.qkv.n});
    ops::linear(stream, layer.qkv, h, qkv, ops::Epilogue::kStore);
    ops::QkvWrite write = kv_write(batch, kv);
    write.qkv = qkv;
    write.q_norm = layer.q_norm.view;
    write.k_norm = layer.k_norm.view;
    write.heads = spec_.heads;
    write.rows_ready = index > 0;  // a pass begins with the first layer
    write.q_out = scratch.take(kv.dtype, {rows, spec_.heads, spec_.head_dim});
    ops::write_qkv(stream, write);

    ops::Attention attention;
    attention.q = write.q_out;
    attention.heads = spec_.heads;
    attention.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
    attention.visible_begin = windowed ? batch.window_begin : batch.visible_begin;
    attention.visible_end = windowed ? batch.window_end : batch.visible_end;
    attention.page_table = batch.page_table;
    attention.segments = batch.segments.data();
    attention.n_segments = static_cast<int32_t>(batch.segments.size());
    attention.max_segment_rows = batch.max_segment_rows;
    attention.max_positions = batch.max_positions;
    attention.work = windowed ? batch.window_work : batch.work;
    attention.after_write = true;
    attention.kv = kv;
    attention.out = a;
    ops::attention(stream, attention, scratch);
  }
  product(stream, layer.o, a, x, ops::Epilogue::kAdd, scratch);
  ops::rms_norm(stream, x, layer.post_norm.view, spec_.norm_eps, {}, h);
  const TensorView m = scratch.take(activation(), {rows, spec_.intermediate});
  ops::linear(stream, layer.gate_up, h, m, ops::Epilogue::kSwiGlu);
  product(stream, layer.down, m, x, ops::Epilogue::kAdd, scratch);
}

void DecoderLayers::inject(Stream& stream, const RowBatch& batch, const ops::KvLayer& kv, const ops::ScaledRows& h,
                           Arena& scratch) const {
  VOLLEY_CHECK_GT(injection_.kv.n, 0);
  ArenaScope scope(scratch);
  ops::QkvWrite write = kv_write(batch, kv);
  write.layers = count();
  write.k_norm = injection_.k_norm.view;
  write.qkv = scratch.take(DType::kF32, {batch.rows, injection_.kv.n});
  ops::linear(stream, injection_.kv, h, write.qkv, ops::Epilogue::kStore);
  ops::write_qkv(stream, write);
}

int64_t DecoderLayers::scratch_bytes(DeviceKind device, const DecoderSpec& spec, int64_t rows, int64_t max_positions,
                                     DType kv) {
  ops::AttentionRows bounds = attention_rows(spec, kv);
  bounds.rows = bounds.n_segments = bounds.max_segment_rows = static_cast<int32_t>(rows);
  bounds.max_positions = static_cast<int32_t>(max_positions);
  const int64_t q_width = int64_t{spec.heads} * spec.head_dim, kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  // Everything at once, as fp32, with room to align each tensor: an upper bound.
  const int64_t widths = spec.hidden + q_width + (q_width + 2 * kv_width) + q_width + spec.intermediate;
  return rows * widths * 4 + 8 * kArenaAlignment +
         ops::attention_scratch_bytes(rows, spec.heads, spec.head_dim, max_positions) +
         2 * ops::attention_work_bytes(device, bounds);
}

}  // namespace volley::model
