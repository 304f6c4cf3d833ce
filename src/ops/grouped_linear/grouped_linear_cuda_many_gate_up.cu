#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {

void launch_grouped_many_gate_up(Stream& stream, const GroupedArgs& args, int processors) {
  using Shape = GroupedShape<2, static_cast<int>(GroupedTileSize::kManyRows), PanelEnd::kGateUpQuick>;
  launch_grouped_tiles<Shape, 32, 64, 96, 128, 160, 256>(stream, args, processors);
}

}  // namespace volley::ops
