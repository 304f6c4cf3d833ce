// Grouped products with e4m3 codes, and with integers of more than 4 bits, on sm_90a.
//
// One warp copies, and a kernel has two tile heights. With more copying warps or heights the compiler runs out of
// registers, and makes each product wait for the one before.
#include "ops/grouped_linear/grouped_linear_cuda_codes_tiles.cuh"

namespace volley::ops {
namespace {

template <PanelEnd kEnd, int kMostRows, int... kRows>
void launch(Stream& stream, const GroupedCodeArgs& args, int processors) {
  if (args.codes.bytes) {
    using Shape = CodeShape<2, kMostRows, kEnd, true, 1>;
    return launch_grouped_tiles<Shape, CodeWeights<codes::Bytes>, kRows...>(stream, args, processors);
  }
  codes::with_reading<true>(args.codes, [&](auto reading) {
    using Shape = CodeShape<2, kMostRows, kEnd, false, 1, true>;
    launch_grouped_tiles<Shape, CodeWeights<decltype(reading)>, kRows...>(stream, args, processors);
  });
}
template <PanelEnd kEnd>
void launch_few(Stream& stream, const GroupedCodeArgs& args, int processors) {
  launch<kEnd, 64, 16, 64>(stream, args, processors);
}
template <PanelEnd kEnd>
void launch_many(Stream& stream, const GroupedCodeArgs& args, int processors) {
  launch<kEnd, 128, 64, 128>(stream, args, processors);
}

}  // namespace

void grouped_bytes_tiles_cuda(Stream& stream, const GroupedCodeArgs& args, GroupedTileSize size, int processors) {
  const bool few = size == GroupedTileSize::kFewRows;
  if (args.grouped.layout != LinearLayout::kGateUp) {
    return few ? launch_few<PanelEnd::kPlain>(stream, args, processors)
               : launch_many<PanelEnd::kPlain>(stream, args, processors);
  }
  // SwiGLU to fp32 is for tests and comparisons.
  if (few || args.grouped.y_dtype == DType::kF32) return launch_few<PanelEnd::kGateUp>(stream, args, processors);
  launch_many<PanelEnd::kGateUpQuick>(stream, args, processors);
}

}  // namespace volley::ops
