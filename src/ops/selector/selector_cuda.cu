#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/choice/noise.cuh"
#include "ops/choice/sampler_state_cuda.h"
#include "ops/selector/selector_kernels.h"

namespace volley::ops {
namespace {

using choice::Key;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kHeld = 4;  // best scores that a thread holds; it seldom has more of a row's

// The best of this thread's tokens below `below`, the best first; 0 where there are no more.
__device__ void hold_best(const float* logits, int64_t vocab, Key below, Key (&held)[kHeld]) {
#pragma unroll
  for (Key& key : held) key = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const float value = logits[v];
    if (isnan(value)) continue;
    const Key key = choice::key_of(value, static_cast<int32_t>(v));
    if (key >= below || key <= held[kHeld - 1]) continue;
    held[kHeld - 1] = key;
#pragma unroll
    for (int i = kHeld - 1; i > 0; --i) {
      if (held[i] <= held[i - 1]) continue;
      const Key lower = held[i - 1];
      held[i - 1] = held[i];
      held[i] = lower;
    }
  }
}

// A block a row: top_k times the best that is left.
__global__ void __launch_bounds__(kThreads)
    find_kernel(const float* logits, int64_t vocab, int32_t top_k, float* values, TokenId* ids) {
  __shared__ Key of_warps[2][kWarps];  // in turn, so that one barrier a round is enough
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const float* row = logits + blockIdx.x * vocab;
  const int64_t to = static_cast<int64_t>(blockIdx.x) * top_k;
  Key held[kHeld];
  hold_best(row, vocab, ~Key{0}, held);
  for (int32_t c = 0; c < top_k; ++c) {
    Key best = held[0];
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (threadIdx.x % 32 == 0) of_warps[c % 2][threadIdx.x / 32] = best;
    __syncthreads();
    for (const Key key : of_warps[c % 2]) best = max(best, key);
    if (threadIdx.x == 0) {
      ids[to + c] = best == 0 ? Candidates::kNone : choice::id_of(best);
      values[to + c] = choice::value_of(best);
    }
    if (best == 0 || held[0] != best) continue;
#pragma unroll
    for (int i = 0; i + 1 < kHeld; ++i) held[i] = held[i + 1];
    held[kHeld - 1] = 0;
    if (held[0] == 0) hold_best(row, vocab, best, held);
  }
}

struct WalkArgs {
  const float* hidden;
  const void* predecessor;
  const void* successor;
  DType predecessor_dtype, successor_dtype;
  int64_t rank;
  int32_t top_k;
  const float* values;
  const TokenId* ids;
  const ChoiceSegment* segments;
  const SlotRow* slots;
  const choice::DeviceSlot* rules;
  TokenId* tokens;
  float* probability;
};

// Chooses from a row's scores, those over the temperature and those with noise, in one thread.
__device__ TokenId choose_one(const WalkArgs& args, int64_t row, const float* scores, const float* noisy) {
  const TokenId* ids = args.ids + row * args.top_k;
  int32_t n = 0, best = 0;
  float highest = -INFINITY, reached = -INFINITY;
  for (; n < args.top_k && ids[n] != Candidates::kNone; ++n) {
    highest = fmaxf(highest, scores[n]);
    if (noisy[n] > reached) reached = noisy[n], best = n;
  }
  float weights = 0;
  for (int32_t c = 0; c < n; ++c) weights += expf(scores[c] - highest);
  const float probability = n > 0 ? expf(scores[best] - highest) / weights : 0;
  const TokenId token = n > 0 ? ids[best] : 0;
  args.tokens[row] = token;
  args.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  return token;
}

// A block a segment, a warp a candidate.
__global__ void __launch_bounds__(kThreads) walk_kernel(WalkArgs args) {
  __shared__ float wanted[kMaxSelectorRank];  // multiplied with a candidate's successor
  __shared__ float scores[kMaxCandidates], noisy[kMaxCandidates];
  __shared__ TokenId chosen;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const ChoiceSegment segment = args.segments[blockIdx.x];
  if (segment.rows == 0) return;
  const choice::DeviceRule& rule = args.rules[segment.slot];
  if (rule.started == 0) __trap();  // our bug
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TokenId previous = args.slots[segment.slot].last_token;
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    for (int64_t j = threadIdx.x; j < args.rank; j += kThreads) {
      wanted[j] = cuda::load_float(args.predecessor, args.predecessor_dtype, previous * args.rank + j) *
                  args.hidden[row * args.rank + j];
    }
    __syncthreads();
    for (int32_t c = static_cast<int32_t>(threadIdx.x) / 32; c < args.top_k; c += kWarps) {
      const TokenId id = args.ids[row * args.top_k + c];
      if (id == Candidates::kNone) break;
      float sum = 0;
      for (int64_t j = lane; j < args.rank; j += 32) {
        sum += wanted[j] * cuda::load_float(args.successor, args.successor_dtype, id * args.rank + j);
      }
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
      if (lane != 0) continue;
      const float score = (args.values[row * args.top_k + c] + sum) / rule.divisor;
      scores[c] = noisy[c] = score;
      if (rule.greedy != 0) continue;
      const uint4 words = choice::philox(rule.seed[0], rule.seed[1], static_cast<uint32_t>(id) / 4,
                                         static_cast<uint32_t>(segment.first_index + i), rule.choice_index);
      noisy[c] = score + choice::gumbel(choice::word_of(words, id));
    }
    __syncthreads();
    if (threadIdx.x == 0) chosen = choose_one(args, row, scores, noisy);
    __syncthreads();
    previous = chosen;
  }
}

void find_candidates_cuda(Stream& stream, TensorView logits, const Candidates& candidates) {
  cuda::launch(find_kernel, {.grid = cuda::dims(logits.dim(0)), .block = dim3(kThreads), .early = true}, stream,
               static_cast<const float*>(logits.data), logits.dim(1), static_cast<int32_t>(candidates.ids.dim(1)),
               candidates.logits.as<float>(), candidates.ids.as<TokenId>());
}

void walk_cuda(Stream& stream, const SelectorTask& task, const Candidates& candidates) {
  WalkArgs args = {};
  args.hidden = task.hidden.as<float>();
  args.predecessor = task.predecessor.data;
  args.successor = task.successor.data;
  args.predecessor_dtype = task.predecessor.dtype;
  args.successor_dtype = task.successor.dtype;
  args.rank = task.hidden.dim(1);
  args.top_k = task.top_k;
  args.values = candidates.logits.as<float>();
  args.ids = candidates.ids.as<TokenId>();
  args.segments = task.segments.data();
  args.slots = task.slots;
  args.rules = static_cast<const choice::CudaSamplerState&>(*task.state).slots();
  args.tokens = task.tokens;
  args.probability = task.probability;
  cuda::launch(walk_kernel, {.grid = cuda::dims(std::ssize(task.segments)), .block = dim3(kThreads), .early = true},
               stream, args);
}

}  // namespace

const SelectorKernels SelectorKernels::kCuda = {find_candidates_cuda, walk_cuda};

}  // namespace volley::ops
