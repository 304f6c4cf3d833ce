#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/chain/chain_kernels.h"
#include "ops/chain/chain_rule.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 128;

// A thread a segment.
cuda::Launch segments_launch(int32_t n) {
  return {.grid = cuda::dims((n + kThreads - 1) / kThreads), .block = dim3(kThreads), .early = true};
}

// A block a row.
cuda::Launch rows_launch(int32_t rows) {
  return {.grid = cuda::dims(rows), .block = dim3(kThreads), .early = true};
}

__global__ void chain_rows_kernel(Step step, int32_t j, const TokenId* previous, Rows rows, PassChoices choices) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t s = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (s >= step.n || step.segments[s].block_index < 0) return;
  chain::fill_row(step, step.segments[s], j, previous, rows, choices);
}

__global__ void put_drafts_kernel(Step step, int32_t j, const TokenId* chosen, const float* probability,
                                  TokenId* tokens, float* confidence) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t s = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (s < step.n) chain::put_draft(step.segments[s], j, chosen, probability, tokens, confidence);
}

__global__ void take_previous_kernel(Rows rows, TensorView hidden, HiddenCarry carry, float* out, int64_t width) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const chain::Source source = chain::source_of(rows, hidden.data != nullptr, carry, r);
  const void* from = hidden.data;
  int64_t row = r - 1;
  if (source == chain::Source::kCarry) {
    from = carry.hidden.data;
    row = chain::entry(rows, carry, r, chain::value(rows.cache_positions, r) - 1);
  }
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    out[r * width + i] =
        source == chain::Source::kNowhere ? 0.0f : cuda::load_float(from, carry.hidden.dtype, row * width + i);
  }
}

// No two rows of requests write one entry: where rows of a sequence share it, only the last one writes. Rows of padding
// may write one entry together; no pass reads it.
__global__ void carry_last_kernel(Rows rows, TensorView hidden, HiddenCarry carry, int64_t width) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  if (chain::are_of_one_run(rows, r, r + carry.depth)) return;
  const int32_t position = chain::value(rows.cache_positions, r);
  const int64_t to = chain::entry(rows, carry, r, position);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    cuda::store_float(carry.hidden.data, carry.hidden.dtype, to * width + i,
                      cuda::load_float(hidden.data, hidden.dtype, r * width + i));
  }
  if (threadIdx.x == 0) static_cast<int32_t*>(carry.positions.data)[to] = position;
}

void fill_chain_rows_cuda(Stream& stream, const Step& step, int32_t j, const TokenId* previous, const Rows& rows,
                          const PassChoices& choices) {
  cuda::launch(chain_rows_kernel, segments_launch(step.n), stream, step, j, previous, rows, choices);
}

void put_chain_drafts_cuda(Stream& stream, const Step& step, int32_t j, const TokenId* chosen, const float* probability,
                           TokenId* tokens, float* confidence) {
  cuda::launch(put_drafts_kernel, segments_launch(step.n), stream, step, j, chosen, probability, tokens, confidence);
}

void take_previous_cuda(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry, TensorView out) {
  cuda::launch(take_previous_kernel, rows_launch(rows.rows), stream, rows, hidden, carry, out.as<float>(),
               out.shape[1]);
}

void carry_last_cuda(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry) {
  cuda::launch(carry_last_kernel, rows_launch(rows.rows), stream, rows, hidden, carry, hidden.shape[1]);
}

}  // namespace

const ChainKernels ChainKernels::kCuda = {fill_chain_rows_cuda, put_chain_drafts_cuda, take_previous_cuda,
                                          carry_last_cuda};

}  // namespace volley::ops
