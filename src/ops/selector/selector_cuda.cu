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
    find_kernel(const float* logits, int64_t vocab, int32_t top_k, float* values, int32_t* columns) {
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
      columns[to + c] = best == 0 ? Candidates::kNone : choice::id_of(best);
      values[to + c] = choice::value_of(best);
    }
    if (best == 0 || held[0] != best) continue;
#pragma unroll
    for (int i = 0; i + 1 < kHeld; ++i) held[i] = held[i + 1];
    held[kHeld - 1] = 0;
    if (held[0] == 0) hold_best(row, vocab, best, held);
  }
}

// Columns of a matrix, or nothing.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t width = 0, first = 0;

  __device__ float at(int64_t row, int64_t j) const { return cuda::load_float(data, dtype, row * width + first + j); }
};

struct WalkArgs {
  Scoring scoring;
  int32_t outputs, inputs;  // of W; a row of `hidden` has as many as outputs
  int32_t rank, top_k;
  const float* hidden;
  const float* confidence;  // null: there is no such head
  Matrix predecessor, successor, weight, confidence_weight;
  const float* values;
  const int32_t* columns;
  const TokenId* token_ids;  // null: tokens and columns are one
  const ChoiceSegment* segments;
  const SlotRow* slots;
  const choice::DeviceSlot* rules;
  TokenId* tokens;
  float* probability;

  __device__ TokenId token_of(int32_t column) const { return token_ids == nullptr ? column : token_ids[column]; }
};

// All lanes of a warp get the sum over j of x[j] * matrix[row, j].
__device__ float warp_dot(const Matrix& matrix, int64_t row, const float* x, int32_t n) {
  float sum = 0;
  for (int32_t j = static_cast<int32_t>(threadIdx.x) % 32; j < n; j += 32) sum += x[j] * matrix.at(row, j);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return sum;
}

// What one thread makes of a row's scores, those over the temperature and those with noise. chance: the head's.
__device__ TokenId choose_one(const WalkArgs& args, int64_t row, const float* scores, const float* noisy,
                              float chance) {
  const int32_t* columns = args.columns + row * args.top_k;
  int32_t n = 0, best = 0;
  float highest = -INFINITY, reached = -INFINITY;
  for (; n < args.top_k && columns[n] != Candidates::kNone; ++n) {
    highest = fmaxf(highest, scores[n]);
    if (noisy[n] > reached) reached = noisy[n], best = n;
  }
  float weights = 0;
  for (int32_t c = 0; c < n; ++c) weights += expf(scores[c] - highest);
  float probability = n > 0 ? expf(scores[best] - highest) / weights : 0;
  if (n > 0 && args.confidence != nullptr) probability = chance;
  const TokenId token = args.token_of(n > 0 ? columns[best] : 0);
  args.tokens[row] = token;
  args.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  return token;
}

// A block a segment, a warp a candidate or an output of W.
__global__ void __launch_bounds__(kThreads) walk_kernel(WalkArgs args) {
  __shared__ float inputs[2 * kMaxSelectorRank];  // s, then e
  __shared__ float raw[3 * kMaxSelectorRank];     // hidden + W's product
  __shared__ float query[kMaxSelectorRank];
  __shared__ float scores[kMaxCandidates], noisy[kMaxCandidates];
  __shared__ float chance;
  __shared__ TokenId chosen;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const ChoiceSegment segment = args.segments[blockIdx.x];
  if (segment.rows == 0) return;
  const choice::DeviceRule& rule = args.rules[segment.slot];
  if (rule.started == 0) __trap();  // our bug
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float* const embedding = inputs + args.rank;
  for (int32_t j = thread; j < args.rank; j += kThreads) inputs[j] = 0;
  TokenId previous = args.slots[segment.slot].last_token;
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    const float* hidden = args.hidden + row * args.outputs;
    for (int32_t j = thread; j < args.rank; j += kThreads) embedding[j] = args.predecessor.at(previous, j);
    if (args.inputs == 0) {
      for (int32_t j = thread; j < args.outputs; j += kThreads) raw[j] = hidden[j];
    }
    __syncthreads();
    if (args.inputs > 0) {
      const float* x = embedding + args.rank - args.inputs;
      for (int32_t j = warp; j < args.outputs; j += kWarps) {
        const float sum = warp_dot(args.weight, j, x, args.inputs);
        if (lane == 0) raw[j] = hidden[j] + sum;
      }
      __syncthreads();
    }
    for (int32_t j = thread; j < args.rank; j += kThreads) {
      query[j] = query_element(args.scoring, raw, args.rank, j, embedding[j], inputs[j]);
    }
    __syncthreads();
    for (int32_t c = warp; c < args.top_k; c += kWarps) {
      const int32_t column = args.columns[row * args.top_k + c];
      if (column == Candidates::kNone) break;
      const float sum = warp_dot(args.successor, column, query, args.rank);
      if (lane != 0) continue;
      const float score = (args.values[row * args.top_k + c] + sum) / rule.divisor;
      scores[c] = noisy[c] = score;
      if (rule.greedy != 0) continue;
      const TokenId id = args.token_of(column);
      const uint4 words = choice::philox(rule.seed[0], rule.seed[1], static_cast<uint32_t>(id) / 4,
                                         static_cast<uint32_t>(segment.first_index + i), rule.choice_index);
      noisy[c] = score + choice::gumbel(choice::word_of(words, id));
    }
    if (args.confidence != nullptr && warp == kWarps - 1) {
      const int32_t n = args.confidence_weight.data == nullptr ? 0 : args.rank;
      const float sum = warp_dot(args.confidence_weight, 0, embedding, n);
      if (lane == 0) chance = sigmoid_of(args.confidence[row] + sum);
    }
    __syncthreads();
    if (thread == 0) chosen = choose_one(args, row, scores, noisy, chance);
    __syncthreads();
    previous = chosen;
  }
}

Matrix matrix_of(const TensorView& view, int64_t first = 0) {
  if (view.data == nullptr) return {};
  return {view.data, view.dtype, view.dim(1), first};
}

void find_candidates_cuda(Stream& stream, TensorView logits, const Candidates& candidates) {
  cuda::launch(find_kernel, {.grid = cuda::dims(logits.dim(0)), .block = dim3(kThreads), .early = true}, stream,
               static_cast<const float*>(logits.data), logits.dim(1), static_cast<int32_t>(candidates.columns.dim(1)),
               candidates.logits.as<float>(), candidates.columns.as<int32_t>());
}

void walk_cuda(Stream& stream, const SelectorTask& task, const Candidates& candidates) {
  WalkArgs args = {};
  const int64_t rank = task.predecessor.dim(1);
  const ScoringSizes sizes = sizes_of(task.scoring);
  args.scoring = task.scoring;
  args.outputs = static_cast<int32_t>(sizes.hidden * rank);
  args.inputs = static_cast<int32_t>(sizes.inputs * rank);
  args.rank = static_cast<int32_t>(rank);
  args.top_k = task.top_k;
  args.hidden = static_cast<const float*>(task.hidden.data);
  args.confidence = static_cast<const float*>(task.confidence.data);
  args.predecessor = matrix_of(task.predecessor);
  args.successor = matrix_of(task.successor);
  args.weight = matrix_of(task.weight.matrix, task.weight.first);
  args.confidence_weight = matrix_of(task.confidence_weight.matrix, task.confidence_weight.first);
  args.values = candidates.logits.as<float>();
  args.columns = candidates.columns.as<int32_t>();
  args.token_ids = static_cast<const TokenId*>(task.token_ids.data);
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
