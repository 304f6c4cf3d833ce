// Both products of a mixture in one kernel, where the experts are codes.
#include "ops/grouped_linear/grouped_linear_cuda_codes_tiles.cuh"
#include "ops/grouped_linear/grouped_linear_cuda_experts.cuh"

namespace volley::ops {
namespace {

template <typename Reading>
struct CodeExperts {
  using Args = CodeExpertsArgs;
  static __host__ __device__ const ExpertsArgs& products(const Args& args) { return args.products; }

  template <typename Shape>
  static __device__ __forceinline__ void copy(const Ring& ring, RingWriter& writer, const Args& args, bool gate_up,
                                              const GroupedTile& tile) {
    copy_codes<Shape>(ring, writer, gate_up ? args.products.gate_up : args.products.down,
                      gate_up ? args.gate_up : args.down, tile, 0);
  }
  template <typename Shape, int kRows>
  static __device__ __forceinline__ void sum(const Ring& ring, RingReader& reader, const Args& args, bool gate_up,
                                             float (&sums)[kRows / 2]) {
    const CodeKind codes = gate_up ? args.gate_up : args.down;
    sum_codes<Shape, kRows, Reading>(ring, reader, codes,
                                     gate_up ? args.products.gate_up.k_blocks : args.products.down.k_blocks, sums);
  }
};

// One warp takes tiles and copies. A block has a warpgroup for each panel. With few rows it takes three panels of 4-bit
// codes, for two reasons: a warpgroup that widens leaves two thirds of the issue slots to others, and four experts of
// 2 x 2880 outputs then have 120 tiles of gate and up, nearly one for each multiprocessor. With more rows there are not
// enough registers for three. For e4m3 two suffice: they widen faster than the codes arrive.
template <int kPanels, int kMaxRows, bool kBytes = false>
using Shape = CodeShape<kPanels, kMaxRows, PanelEnd::kPlain, kBytes, 1>;

}  // namespace

void code_experts_tiles_cuda(Stream& stream, const CodeExpertsArgs& args, int64_t rows, int processors) {
  if (args.gate_up.bytes) {
    using Weights = CodeExperts<codes::Bytes>;
    if (rows <= 16) return launch_experts<Shape<2, 16, true>, Weights, 16>(stream, args, processors);
    return launch_experts<Shape<2, 64, true>, Weights, 16, 64>(stream, args, processors);
  }
  codes::with_reading(args.gate_up, [&](auto reading) {
    using Weights = CodeExperts<decltype(reading)>;
    if (rows <= 16) return launch_experts<Shape<3, 16>, Weights, 16>(stream, args, processors);
    launch_experts<Shape<2, 64>, Weights, 16, 64>(stream, args, processors);
  });
}

}  // namespace volley::ops
