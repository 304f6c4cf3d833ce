#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/replay/replay_kernels.h"
#include "ops/replay/replay_rule.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 32;

// A block a segment.
__global__ void replay_kernel(Step step, ReplayTable table, TokenId* tokens, float* confidence) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const StepSegment& segment = step.segments[blockIdx.x];
  if (segment.block_index < 0) return;
  for (int32_t i = threadIdx.x; i < segment.draft; i += kThreads) {
    replay::propose(step, segment, table, i, tokens, confidence);
  }
}

void replay_drafts_cuda(Stream& stream, const Step& step, const ReplayTable& table, TokenId* tokens,
                        float* confidence) {
  cuda::launch(replay_kernel, {.grid = cuda::dims(step.n), .block = dim3(kThreads), .early = true}, stream, step, table,
               tokens, confidence);
}

}  // namespace

const ReplayKernels ReplayKernels::kCuda = {replay_drafts_cuda};

}  // namespace volley::ops
