#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {

void grouped_tiles_cuda(Stream& stream, const GroupedArgs& args, GroupedTileSize size, int processors) {
  if (size == GroupedTileSize::kFewRows) return launch_grouped_few(stream, args, processors);
  if (args.layout == LinearLayout::kGateUp) return launch_grouped_many_gate_up(stream, args, processors);
  launch_grouped_many_plain(stream, args, processors);
}

}  // namespace volley::ops
