#include "spec/row_builder.h"

#include <algorithm>

namespace volley::spec {

Visibility block_visibility(const model::DecoderSpec& spec, int32_t context_window) {
  Visibility visibility;
  visibility.context_window = context_window;
  bool full = false, windowed = false;
  for (const model::LayerSpec& layer : spec.layers) {
    const bool sliding = layer.attention == model::LayerSpec::Attention::kSlidingWindow;
    const Mask mask = layer.causal ? Mask::kCausal : Mask::kBidirectional;
    Mask& kind = sliding ? visibility.window_mask : visibility.mask;
    bool& seen = sliding ? windowed : full;
    VOLLEY_CHECK(!seen || (kind == mask && (!sliding || visibility.layer_window == layer.window)));
    kind = mask;
    seen = true;
    if (sliding) visibility.layer_window = layer.window;
  }
  return visibility;
}

model::RowBatch build_rows(std::span<const RowRun> runs, const Visibility& visibility, TensorView page_table,
                           std::vector<ops::RowSegment>& segments, Arena& scratch) {
  model::RowBatch batch;
  segments.clear();
  for (const RowRun& run : runs) {
    segments.push_back({batch.rows, run.rows, run.slot});
    batch.rows += run.rows;
  }
  batch.segments = segments;
  batch.page_table = page_table;
  batch.rope_positions = scratch.take(DType::kI32, {batch.rows});
  batch.cache_positions = scratch.take(DType::kI32, {batch.rows});
  batch.visible_begin = scratch.take(DType::kI32, {batch.rows});
  batch.visible_end = scratch.take(DType::kI32, {batch.rows});
  const bool windowed = visibility.layer_window > 0;
  if (windowed) {
    batch.window_begin = scratch.take(DType::kI32, {batch.rows});
    batch.window_end = scratch.take(DType::kI32, {batch.rows});
  }
  int32_t row = 0;
  for (const RowRun& run : runs) {
    const int32_t first = cache_position(run.start).value, run_end = first + run.rows;
    const int32_t context_begin = visibility.context_window > 0 ? std::max(0, first - visibility.context_window) : 0;
    for (int32_t i = 0; i < run.rows; ++i, ++row) {
      const SequenceIndex index(run.start.value + i);
      const int32_t position = cache_position(index).value;
      const auto end_of = [&](Mask mask) { return mask == Mask::kCausal ? position + 1 : run_end; };
      batch.rope_positions.as<int32_t>()[row] = rope_position(index).value;
      batch.cache_positions.as<int32_t>()[row] = position;
      batch.visible_begin.as<int32_t>()[row] = context_begin;
      batch.visible_end.as<int32_t>()[row] = end_of(visibility.mask);
      if (!windowed) continue;
      batch.window_begin.as<int32_t>()[row] = std::max(context_begin, position - visibility.layer_window + 1);
      batch.window_end.as<int32_t>()[row] =
          std::min(end_of(visibility.window_mask), position + visibility.layer_window);
    }
  }
  return batch;
}

}  // namespace volley::spec
