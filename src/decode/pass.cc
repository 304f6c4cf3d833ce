#include "decode/pass.h"

namespace volley::decode {

PassMemory take_pass(const PassShape& shape, const ops::Visibility& visibility, const PageTables& tables,
                     Arena& scratch) {
  PassMemory pass;
  const auto per_row = [&] { return scratch.take(DType::kI32, {shape.rows}); };
  ops::Rows& rows = pass.rows;
  rows.rows = shape.rows;
  rows.token_ids = per_row();
  rows.slots = per_row();
  rows.rope_positions = per_row();
  rows.cache_positions = per_row();
  if (shape.rope_axes) rows.rope_axes = scratch.take(DType::kI32, {shape.rows, ops::kRopeAxes});
  for (int i = 0; i < ops::kMaxViews; ++i) {
    ops::RowView& view = rows.views[i];
    view.page_table = tables[i];
    if (i == ops::kWindowView && visibility.layer_window == 0) continue;
    view.begin = per_row();
    view.end = per_row();
  }
  const auto bytes = [&](size_t n) { return scratch.take(DType::kU8, {static_cast<int64_t>(n)}).data; };
  rows.n_segments = shape.segments;
  rows.max_segment_rows = shape.max_segment_rows;
  rows.max_positions = shape.max_positions;
  rows.segments = static_cast<ops::RowSegment*>(bytes(shape.segments * sizeof(ops::RowSegment)));
  pass.choices.segments = static_cast<ops::ChoiceSegment*>(bytes(shape.segments * sizeof(ops::ChoiceSegment)));
  pass.choices.logit_rows = scratch.take(DType::kI32, {shape.choices});
  return pass;
}

ops::Visibility visibility_of(const model::Decoder& spec, int32_t context_window) {
  ops::Visibility visibility;
  visibility.context_window = context_window;
  bool full = false, windowed = false;
  for (const model::Layer& layer : spec.layers) {
    const std::optional<model::KvFacts> kv = layer.mixer_facts().kv;
    if (!kv) continue;
    const bool sliding = kv->window > 0;
    const ops::Mask mask = kv->causal ? ops::Mask::kCausal : ops::Mask::kBidirectional;
    ops::Mask& kind = sliding ? visibility.window_mask : visibility.mask;
    bool& seen = sliding ? windowed : full;
    VOLLEY_CHECK(!seen || (kind == mask && (!sliding || visibility.layer_window == kv->window)));
    kind = mask;
    seen = true;
    if (sliding) visibility.layer_window = kv->window;
  }
  return visibility;
}

}  // namespace volley::decode
