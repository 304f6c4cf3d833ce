#include "spec/pass.h"

namespace volley::spec {

PassMemory take_pass(const PassShape& shape, const ops::Visibility& visibility, TensorView page_table, Arena& scratch) {
  PassMemory pass;
  const auto per_row = [&] { return scratch.take(DType::kI32, {shape.rows}); };
  pass.rows.token_ids = per_row();
  pass.rows.slots = per_row();
  pass.rows.rope_positions = per_row();
  pass.rows.cache_positions = per_row();
  pass.rows.visible_begin = per_row();
  pass.rows.visible_end = per_row();
  if (visibility.layer_window > 0) {
    pass.rows.window_begin = per_row();
    pass.rows.window_end = per_row();
  }
  const auto bytes = [&](size_t n) { return scratch.take(DType::kU8, {static_cast<int64_t>(n)}).data; };
  pass.rows.segments = static_cast<ops::RowSegment*>(bytes(shape.segments * sizeof(ops::RowSegment)));
  pass.choices.segments = static_cast<ops::ChoiceSegment*>(bytes(shape.segments * sizeof(ops::ChoiceSegment)));
  pass.choices.logit_rows = scratch.take(DType::kI32, {shape.choices});

  model::RowBatch& batch = pass.batch;
  batch.rows = shape.rows;
  batch.token_ids = pass.rows.token_ids;
  batch.slots = pass.rows.slots;
  batch.rope_positions = pass.rows.rope_positions;
  batch.cache_positions = pass.rows.cache_positions;
  batch.visible_begin = pass.rows.visible_begin;
  batch.visible_end = pass.rows.visible_end;
  batch.window_begin = pass.rows.window_begin;
  batch.window_end = pass.rows.window_end;
  batch.segments = {pass.rows.segments, static_cast<size_t>(shape.segments)};
  batch.max_segment_rows = shape.max_segment_rows;
  batch.max_positions = shape.max_positions;
  batch.page_table = page_table;
  return pass;
}

namespace {

ops::Visibility visibility_of(const model::Decoder& spec) {
  ops::Visibility visibility;
  bool full = false, windowed = false;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const model::Attention* layer = spec.attention(i);
    if (layer == nullptr) continue;
    const bool sliding = layer->window > 0;
    const ops::Mask mask = layer->causal ? ops::Mask::kCausal : ops::Mask::kBidirectional;
    ops::Mask& kind = sliding ? visibility.window_mask : visibility.mask;
    bool& seen = sliding ? windowed : full;
    VOLLEY_CHECK(!seen || (kind == mask && (!sliding || visibility.layer_window == layer->window)));
    kind = mask;
    seen = true;
    if (sliding) visibility.layer_window = layer->window;
  }
  return visibility;
}

}  // namespace

ops::Visibility block_visibility(const model::Decoder& spec, int32_t context_window) {
  ops::Visibility visibility = visibility_of(spec);
  visibility.context_window = context_window;
  return visibility;
}

ops::Visibility target_visibility(const model::Decoder& spec) {
  return visibility_of(spec);
}

}  // namespace volley::spec
