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
                                              const GroupedTile& tile, int warp) {
    copy_codes<Shape>(ring, writer, gate_up ? args.products.gate_up : args.products.down,
                      gate_up ? args.gate_up : args.down, tile, warp);
  }
  template <typename Shape, int kRows>
  static __device__ __forceinline__ void sum(const Ring& ring, RingReader& reader, const Args& args, bool gate_up,
                                             float (&sums)[kRows / 2]) {
    const CodeKind codes = gate_up ? args.gate_up : args.down;
    sum_codes<Shape, kRows, Reading>(ring, reader, codes,
                                     gate_up ? args.products.gate_up.k_blocks : args.products.down.k_blocks, sums);
  }
};

// Codes are used up faster than one thread asks for copies: a block of three panels took 900 cycles whatever the
// panels' warps did. With few rows three warps copy and one fetches x, for four panels; with more rows two and two, as
// there are registers for no more.
template <int kPanels, int kMaxRows, bool kBytes = false>
struct Shape : CodeShape<kPanels, kMaxRows, PanelEnd::kPlain, kBytes, kMaxRows <= 16 ? 3 : 2> {
  using Base = CodeShape<kPanels, kMaxRows, PanelEnd::kPlain, kBytes, kMaxRows <= 16 ? 3 : 2>;
  static constexpr int kXThreads = kMaxRows <= 16 ? 32 : 64, kArrivals = 1 + kXThreads;
  static constexpr int kThreads = Base::kConsumers + Base::kCopyWarps * 32 + kXThreads, kWarps = kThreads / 32;
};

}  // namespace

void code_experts_tiles_cuda(Stream& stream, const CodeExpertsArgs& args, int64_t rows, int processors) {
  if (args.gate_up.bytes) {
    using Weights = CodeExperts<codes::Bytes>;
    if (rows <= 16) return launch_experts<Shape<4, 16, true>, Weights, 16>(stream, args, processors);
    return launch_experts<Shape<2, 64, true>, Weights, 16, 64>(stream, args, processors);
  }
  codes::with_reading(args.gate_up, [&](auto reading) {
    using Weights = CodeExperts<decltype(reading)>;
    if (rows <= 16) return launch_experts<Shape<4, 16>, Weights, 16>(stream, args, processors);
    launch_experts<Shape<2, 64>, Weights, 16, 64>(stream, args, processors);
  });
}

}  // namespace volley::ops
