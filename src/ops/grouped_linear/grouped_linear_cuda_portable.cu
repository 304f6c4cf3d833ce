// The portable kernel on experts in bf16.
#include "ops/grouped_linear/grouped_linear_cuda_portable.cuh"

namespace volley::ops {
namespace {

struct Values {
  using Args = GroupedArgs;
  static __host__ __device__ const GroupedArgs& grouped(const Args& args) { return args; }
  static constexpr int kMostBytes = static_cast<int>(kBlockBytes);

  explicit __device__ Values(const Args&) {}
  __device__ int64_t block_at(int block) const { return block * kBlockBytes; }

  template <int kThreads>
  __device__ void fill(uint32_t stage, const uint8_t* panel, int block) const {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kBlockBytes / 16; i += kThreads) {
      fragments::copy16(stage + i * 16, panel + block * kBlockBytes + i * 16, 16);
    }
  }

  template <int kTiles>
  __device__ void multiply(uint32_t stage, int, float (&sums)[kTiles][4]) const {
    fragments::multiply64(sums, stage, static_cast<int>(threadIdx.x) / 32 * 16, stage + kMostBytes);
  }
};

}  // namespace

void grouped_portable_cuda(Stream& stream, const GroupedArgs& args, int processors) {
  multiply_experts_portably<Values>(stream, args, processors);
}

}  // namespace volley::ops
