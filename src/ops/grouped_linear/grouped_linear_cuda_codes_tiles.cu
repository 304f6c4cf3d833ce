// Grouped products with 4-bit codes on sm_90a.
#include "ops/grouped_linear/grouped_linear_cuda_codes_tiles.cuh"

namespace volley::ops {
namespace {

template <PanelEnd kEnd>
void launch_few(Stream& stream, const GroupedCodeArgs& args, int processors) {
  using Shape = CodeShape<2, static_cast<int>(GroupedTileSize::kFewRows), kEnd>;
  codes::with_reading(args.codes, [&](auto reading) {
    launch_grouped_tiles<Shape, CodeWeights<decltype(reading)>, 8, 16, 32, 64>(stream, args, processors);
  });
}
template <PanelEnd kEnd>
void launch_many(Stream& stream, const GroupedCodeArgs& args, int processors) {
  using Shape = CodeShape<2, static_cast<int>(GroupedTileSize::kManyRows), kEnd>;
  codes::with_reading(args.codes, [&](auto reading) {
    launch_grouped_tiles<Shape, CodeWeights<decltype(reading)>, 32, 64, 128, 256>(stream, args, processors);
  });
}

}  // namespace

void grouped_codes_tiles_cuda(Stream& stream, const GroupedCodeArgs& args, GroupedTileSize size, int processors) {
  if (args.codes.bytes || args.codes.bits > 4) return grouped_bytes_tiles_cuda(stream, args, size, processors);
  const bool pairs = args.grouped.layout == LinearLayout::kGateUp;
  const bool few = size == GroupedTileSize::kFewRows;
  if (!pairs) {
    return few ? launch_few<PanelEnd::kPlain>(stream, args, processors)
               : launch_many<PanelEnd::kPlain>(stream, args, processors);
  }
  // SwiGLU to fp32 is for tests and comparisons.
  if (few || args.grouped.y_dtype == DType::kF32) return launch_few<PanelEnd::kGateUp>(stream, args, processors);
  launch_many<PanelEnd::kGateUpQuick>(stream, args, processors);
}

}  // namespace volley::ops
