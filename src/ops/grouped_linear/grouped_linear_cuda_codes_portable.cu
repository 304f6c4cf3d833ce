// The portable kernel on experts in codes: warps widen their rows in registers instead of loading them.
#include "ops/grouped_linear/grouped_linear_cuda_codes.h"
#include "ops/grouped_linear/grouped_linear_cuda_portable.cuh"

namespace volley::ops {
namespace {

// kE4M3: e4m3 instead of integers and e2m1.
template <bool kE4M3>
struct Codes {
  using Args = GroupedCodeArgs;
  static __host__ __device__ const GroupedArgs& grouped(const Args& args) { return args.grouped; }
  static constexpr int kMostBytes = kE4M3 ? kMostByteBlock : 2 * most_half_bytes(true);

  const CodeKind& kind;
  codes::StoredCodes<codes::Bytes> bytes;  // for e4m3: state left by the block before

  explicit __device__ Codes(const Args& args) : kind(args.codes) {}
  __device__ int64_t block_at(int block) const {
    if constexpr (kE4M3) return byte_block_at(block, kind.pairs_share);
    return static_cast<int64_t>(block) * 2 * kind.half_bytes();
  }

  template <int kThreads>
  __device__ void fill(uint32_t stage, const uint8_t* panel, int block) const {
    const int64_t from = block_at(block);
    const int block_bytes = static_cast<int>(block_at(block + 1) - from);
    for (int i = static_cast<int>(threadIdx.x); i < block_bytes / 16; i += kThreads) {
      fragments::copy16(stage + i * 16, panel + from + i * 16, 16);
    }
  }

  template <int kTiles>
  __device__ void multiply(uint32_t stage, int block, float (&sums)[kTiles][4]) {
    const int warp = threadIdx.x / 32;
    uint32_t a[4][4];
    if constexpr (kE4M3) {
      const uint32_t words = stage + bytes.words_at(warp), scales = stage + bytes.scales_at(kind, warp);
      if (block % 2 == 0) {
        bytes.load<false>(kind, words, scales);
      } else {
        bytes.load<true>(kind, words, scales);
      }
      codes::widen(kind, bytes, a);
    } else {
      widen_half(kind, stage + warp / 2 * kind.half_bytes(), warp % 2, a);
    }
#pragma unroll
    for (int k = 0; k < kBlockK / 16; k += 2) fragments::multiply32(sums, a[k], a[k + 1], stage + kMostBytes, k);
  }
};

}  // namespace

void grouped_codes_portable_cuda(Stream& stream, const GroupedCodeArgs& args, int processors) {
  if (args.codes.bytes) return multiply_experts_portably<Codes<true>>(stream, args, processors);
  multiply_experts_portably<Codes<false>>(stream, args, processors);
}

}  // namespace volley::ops
