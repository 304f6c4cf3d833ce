#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/step/step_kernels.h"
#include "ops/step/step_rule.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 128;
constexpr unsigned kMaskBlocks = 64;  // enough reads under way to fill the bus to the host

// A block a segment.
cuda::Launch segments_launch(int32_t n) {
  return {.grid = cuda::dims(n), .block = dim3(kThreads), .early = true};
}

__device__ uint64_t acquired(const uint64_t* from) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}

__global__ void draft_rows_kernel(Step step, DraftBlock block, Visibility visibility, Rows rows, PassChoices choices) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const StepSegment& segment = step.segments[blockIdx.x];
  if (segment.block_index < 0) return;
  for (int32_t i = threadIdx.x; i < block.rows; i += kThreads) {
    step::fill_draft_row(step, segment, block, visibility, rows, choices, i);
  }
}

__global__ void verify_rows_kernel(Step step, const TokenId* drafts, Visibility visibility, Rows rows,
                                   PassChoices choices) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t index = static_cast<int32_t>(blockIdx.x), count = step.segments[index].rows_reserved;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    step::fill_verify_row(step, index, drafts, visibility, rows, choices, i);
  }
  if (threadIdx.x == 0) step::fill_verify_segment(step, index, drafts, rows, choices);
}

// A thread a segment: some dozen comparisons each.
__global__ void accept_kernel(Step step, AcceptInputs in, AcceptOutputs out) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= step.n) return;
  const StepSegment segment = step.segments[i];
  const StepOutcome outcome =
      step::accept_segment(segment, step.slots[segment.slot], in, out.tokens + static_cast<int64_t>(i) * out.stride);
  out.outcomes[i] = outcome;
  out.slots[i] = segment.slot;
  out.counts[i] = outcome.committed;
}

__global__ void edit_kernel(const PageTableEdit* edits, int32_t n, int32_t* table, int64_t width) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n) table[edits[i].slot * width + edits[i].index] = edits[i].page;
}

// Reading the host's memory is slow, so only one thread a block polls it.
__global__ void take_masks_kernel(StepMasks masks) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const MaskTicket ticket = *masks.ticket;
  if (ticket.rows == 0) return;
  if (threadIdx.x == 0) {
    while (acquired(masks.filled) < ticket.step) __nanosleep(200);
  }
  __syncthreads();
  const int64_t words = static_cast<int64_t>(ticket.rows) * masks.words;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
    masks.to[i] = masks.from[i];
  }
}

void fill_draft_rows_cuda(Stream& stream, const Step& step, const DraftBlock& block, const Visibility& visibility,
                          const Rows& rows, const PassChoices& choices) {
  cuda::launch(draft_rows_kernel, segments_launch(step.n), stream, step, block, visibility, rows, choices);
}

void fill_verify_rows_cuda(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                           const Rows& rows, const PassChoices& choices) {
  cuda::launch(verify_rows_kernel, segments_launch(step.n), stream, step, drafts, visibility, rows, choices);
}

void accept_step_cuda(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out) {
  cuda::launch(accept_kernel, segments_launch((step.n + kThreads - 1) / kThreads), stream, step, in, out);
}

void edit_page_table_cuda(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table) {
  cuda::launch(edit_kernel, segments_launch((n + kThreads - 1) / kThreads), stream, edits, n, table.as<int32_t>(),
               table.shape[1]);
}

void take_masks_cuda(Stream& stream, const StepMasks& masks) {
  cuda::launch(take_masks_kernel, segments_launch(kMaskBlocks), stream, masks);
}

}  // namespace

const StepKernels StepKernels::kCuda = {fill_draft_rows_cuda, fill_verify_rows_cuda, accept_step_cuda,
                                        edit_page_table_cuda, take_masks_cuda};

}  // namespace volley::ops
