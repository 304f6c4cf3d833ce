#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {
namespace {

template <PanelEnd kEnd>
void launch(Stream& stream, const GroupedArgs& args, int processors) {
  using Shape = GroupedShape<2, static_cast<int>(GroupedTileSize::kFewRows), kEnd>;
  launch_grouped_tiles<Shape, 8, 16, 32, 64>(stream, args, processors);
}

}  // namespace

void launch_grouped_few(Stream& stream, const GroupedArgs& args, int processors) {
  return args.layout == LinearLayout::kGateUp ? launch<PanelEnd::kGateUp>(stream, args, processors)
                                              : launch<PanelEnd::kPlain>(stream, args, processors);
}

}  // namespace volley::ops
