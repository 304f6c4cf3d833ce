#include <algorithm>

#include "ops/grouped_linear/grouped_linear_cuda_tiles.cuh"

namespace volley::ops {
namespace {

// A block takes one panel where pairs would leave half of the multiprocessors without work. It shows in no bit.
template <PanelEnd kEnd>
void launch(Stream& stream, const GroupedArgs& args, int processors) {
  constexpr int kRows = static_cast<int>(GroupedTileSize::kFewRows);
  const int64_t panels = std::min(args.experts, args.likely) * args.panels;
  if (panels <= processors) {
    return launch_grouped_tiles<GroupedShape<1, kRows, kEnd>, 8, 16, 32, 64>(stream, args, processors);
  }
  launch_grouped_tiles<GroupedShape<2, kRows, kEnd>, 8, 16, 32, 64>(stream, args, processors);
}

}  // namespace

void launch_grouped_few(Stream& stream, const GroupedArgs& args, int processors) {
  return args.layout == LinearLayout::kGateUp ? launch<PanelEnd::kGateUp>(stream, args, processors)
                                              : launch<PanelEnd::kPlain>(stream, args, processors);
}

}  // namespace volley::ops
