#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/step/step_cuda.h"
#include "ops/step/step_rule.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 128;

// A block a segment.
cuda::Launch segments_launch(int32_t n) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(n));
  how.block = dim3(kThreads);
  how.early = true;
  return how;
}

__global__ void draft_rows_kernel(Step step, int32_t block_size, TokenId mask_token, Visibility visibility, Rows rows,
                                  PassChoices choices) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const StepSegment& segment = step.segments[blockIdx.x];
  if (segment.block_index < 0) return;
  for (int32_t i = threadIdx.x; i < block_size; i += kThreads) {
    step::fill_draft_row(step, segment, block_size, mask_token, visibility, rows, choices, i);
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

}  // namespace

void fill_draft_rows_cuda(Stream& stream, const Step& step, int32_t block_size, TokenId mask_token,
                          const Visibility& visibility, const Rows& rows, const PassChoices& choices) {
  cuda::launch(draft_rows_kernel, segments_launch(step.n), stream, step, block_size, mask_token, visibility, rows,
               choices);
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

}  // namespace volley::ops
