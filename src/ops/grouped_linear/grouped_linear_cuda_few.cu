#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {
namespace {

template <bool kGateUp>
void launch(Stream& stream, const GroupedArgs& args, int processors) {
  using Shape = GroupedShape<2, static_cast<int>(GroupedTileSize::kFewRows), kGateUp>;
  launch_grouped_tiles<Shape, 8, 16, 32, 64>(stream, args, processors);
}

}  // namespace

void launch_grouped_few(Stream& stream, const GroupedArgs& args, int processors) {
  return args.layout == LinearLayout::kGateUp ? launch<true>(stream, args, processors)
                                              : launch<false>(stream, args, processors);
}

}  // namespace volley::ops
