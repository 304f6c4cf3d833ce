#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {

void grouped_tiles_cuda(Stream& stream, const GroupedArgs& args, GroupedTileSize size, int processors) {
  const bool pairs = args.layout == LinearLayout::kGateUp;
  // SwiGLU to fp32 is for tests and comparisons.
  if (size == GroupedTileSize::kFewRows || (pairs && args.y_dtype == DType::kF32)) {
    return launch_grouped_few(stream, args, processors);
  }
  if (pairs) return launch_grouped_many_gate_up(stream, args, processors);
  launch_grouped_many_plain(stream, args, processors);
}

}  // namespace volley::ops
