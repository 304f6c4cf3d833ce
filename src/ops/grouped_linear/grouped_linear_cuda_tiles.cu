#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {

void grouped_tiles_cuda(Stream& stream, const GroupedArgs& args, GroupedTileSize size, int processors) {
  const bool few = size == GroupedTileSize::kFewRows;
  if (args.layout != LinearLayout::kGateUp) {
    return few ? launch_grouped_few_plain(stream, args, processors)
               : launch_grouped_many_plain(stream, args, processors);
  }
  // SwiGLU to fp32 is for tests and comparisons.
  if (few || args.y_dtype == DType::kF32) return launch_grouped_few_gate_up(stream, args, processors);
  launch_grouped_many_gate_up(stream, args, processors);
}

}  // namespace volley::ops
