#include <algorithm>

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
constexpr int kEach = 24;  // columns of a thread
constexpr int64_t kSlice = int64_t{kThreads} * kEach;

__device__ bool has_filter(const choice::DeviceRule& rule) {
  return rule.has_min_p != 0 || rule.top_k != 0 || rule.top_p < 1.0f;
}

// The arguments that say how rows are drawn.
struct Draws {
  const TokenId* token_ids;  // null: tokens and columns are one
  const ChoiceSegment* segments;
  int32_t count;
  const choice::DeviceSlot* rules;
};

// This thread's best of the slice of a row by logit / T + g; 0: none. highest: the slice's highest logit.
__device__ __noinline__ Key draw_slice(const float* row, int64_t vocab, int64_t slice, const TokenId* token_ids,
                                       const choice::DeviceRule& rule, int32_t index, float highest) {
  const float lowest = highest / rule.divisor - choice::kWindow;
  Key best = 0;
  for (int q = 0; q < kEach / 4; ++q) {
    const int64_t four = slice + (int64_t{q} * kThreads + threadIdx.x) * 4;
    int32_t block = -1;
    uint4 words;
    for (int64_t column = four; column < min(four + 4, vocab); ++column) {
      const float z = row[column] / rule.divisor;
      if (!(z >= lowest)) continue;
      const TokenId token = token_ids == nullptr ? static_cast<TokenId>(column) : token_ids[column];
      if (token / 4 != block) {
        block = token / 4;
        words = choice::philox(rule.seed[0], rule.seed[1], static_cast<uint32_t>(block), static_cast<uint32_t>(index),
                               rule.choice_index);
      }
      best = max(best, choice::key_of(z + choice::gumbel(choice::word_of(words, token)), static_cast<int32_t>(column)));
    }
  }
  return best;
}

// The best columns of a slice of a row, the best first; 0 where there are no more. Then the drawn one; 0 where the row
// is not drawn. A block has a slice in registers.
// The least of kMaxCandidates threads' groups' highest values is a bound that at least so many columns reach, and
// seldom more than a few times as many. These few are ranked by comparing each with each.
__global__ void __launch_bounds__(kThreads, 2)
    find_kernel(const float* logits, int64_t vocab, int32_t top_k, Draws draws, Key* of_slices) {
  constexpr int kGroup = kThreads / kMaxCandidates;
  __shared__ float highest[kMaxCandidates];
  __shared__ Key found[kThreads];
  __shared__ Key of_warps[kWarps], drawn[kWarps];
  __shared__ int32_t count, of_row;  // of_row: the row's segment
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const float* const row = logits + blockIdx.x * vocab;
  Key* const to = of_slices + (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * (top_k + 1);
  const int64_t first = blockIdx.y * kSlice + thread;
  const auto key = [&](int j, float value) {
    return choice::key_of(value, static_cast<int32_t>(first) + j * kThreads);
  };
  float values[kEach];  // NaN is no candidate
#pragma unroll
  for (int j = 0; j < kEach; ++j) values[j] = first + j * kThreads < vocab ? row[first + j * kThreads] : NAN;
  float bound = -INFINITY;
#pragma unroll
  for (const float value : values) bound = fmaxf(bound, value);
  for (int step = kGroup / 2; step > 0; step /= 2) bound = fmaxf(bound, __shfl_xor_sync(0xffffffff, bound, step));
  if (thread % kGroup == 0) highest[thread / kGroup] = bound;
  if (thread == 0) {
    count = 0;
    of_row = -1;
  }
  __syncthreads();
  bound = highest[lane];
  float peak = bound;
  for (int step = 16; step > 0; step /= 2) {
    bound = fminf(bound, __shfl_xor_sync(0xffffffff, bound, step));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, step));
  }
  for (int32_t i = thread; i < draws.count; i += kThreads) {
    const int32_t in = static_cast<int32_t>(blockIdx.x) - draws.segments[i].row_begin;
    if (in >= 0 && in < draws.segments[i].rows) of_row = i;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (!(values[j] >= bound)) continue;
    const int32_t at = atomicAdd(&count, 1);
    if (at < kThreads) found[at] = key(j, values[j]);
  }
  __syncthreads();
  const ChoiceSegment* const segment = of_row < 0 ? nullptr : draws.segments + of_row;
  const choice::DeviceRule* const rule = segment == nullptr ? nullptr : draws.rules + segment->slot;
  const bool draw = rule != nullptr && rule->greedy == 0 && !has_filter(*rule) && isfinite(peak);
  if (draw) {
    const int32_t index = segment->first_index + static_cast<int32_t>(blockIdx.x) - segment->row_begin;
    Key best = draw_slice(row, vocab, blockIdx.y * kSlice, draws.token_ids, *rule, index, peak);
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (lane == 0) drawn[thread / 32] = best;
    __syncthreads();
  }
  if (thread == 0) {
    to[top_k] = 0;
    for (int i = 0; draw && i < kWarps; ++i) to[top_k] = max(to[top_k], drawn[i]);
  }
  if (count <= kThreads) {
    if (thread >= count) {
      if (thread < top_k) to[thread] = 0;
      return;
    }
    const Key own = found[thread];
    int32_t rank = 0;
    for (int32_t i = 0; i < count; ++i) rank += found[i] > own ? 1 : 0;
    if (rank < top_k) to[rank] = own;
    return;
  }
  // Many equal values: top_k times the best that is left.
  Key best = ~Key{0};
  for (int32_t c = 0; c < top_k; ++c) {
    const Key last = best;
    best = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const Key own = isnan(values[j]) ? 0 : key(j, values[j]);
      if (own < last) best = max(best, own);
    }
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    if (lane == 0) of_warps[thread / 32] = best;
    __syncthreads();
    for (const Key other : of_warps) best = max(best, other);
    if (thread == 0) to[c] = best;
    __syncthreads();
  }
}

// The best of all slices of a row, the i-th in lane i: two lists meet in the two halves of a bitonic sequence.
__device__ Key best_of_slices(const Key* of_slices, int32_t slices, int32_t top_k) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, back = 31 - lane;
  Key best = lane < top_k ? of_slices[lane] : 0;
#pragma unroll 4
  for (int32_t s = 1; s < slices; ++s) {
    best = max(best, back < top_k ? of_slices[s * (top_k + 1) + back] : 0);
    for (int32_t step = 16; step > 0; step /= 2) {
      const Key other = __shfl_xor_sync(0xffffffff, best, step);
      best = (lane & step) == 0 ? max(best, other) : min(best, other);
    }
  }
  return best;
}

// Columns of a matrix, or nothing.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t width = 0, first = 0;

  // f(element 0 of the row), with its type.
  template <typename F>
  __device__ void visit(int64_t row, F&& f) const {
    const int64_t at = row * width + first;
    if (dtype == DType::kBF16) return f(static_cast<const __nv_bfloat16*>(data) + at);
    if (dtype == DType::kF16) return f(static_cast<const __half*>(data) + at);
    f(static_cast<const float*>(data) + at);
  }
  __device__ float at(int64_t row, int64_t j) const { return cuda::load_float(data, dtype, row * width + first + j); }
  // Brings the row into the cache that all multiprocessors share.
  __device__ void prefetch(int64_t row) const {
    const int64_t bytes = width * (dtype == DType::kF32 ? 4 : 2);
    const char* const from = static_cast<const char*>(data) + row * bytes;
    for (int64_t i = 0; i < bytes; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
};

struct WalkArgs {
  Scoring scoring;
  int32_t outputs, inputs;     // of W; a row of `hidden` has as many as outputs
  int32_t rank, top_k, width;  // width: candidates of a row with the drawn one, at most a warp's lanes
  const float* logits;
  int64_t vocab;
  const float* hidden;
  const float* confidence;  // null: there is no such head
  Matrix predecessor, successor, weight, confidence_weight;
  const Key* of_slices;  // the candidates of the row's slices
  int32_t slices;
  float* values;             // the row's candidates: [rows, width]
  int32_t* columns;          // likewise; kNone where there are no more
  const TokenId* token_ids;  // null: tokens and columns are one
  const ChoiceSegment* segments;
  const SlotRow* slots;
  const choice::DeviceSlot* rules;
  TokenId* tokens;
  float* probability;

  __device__ TokenId token_of(int32_t column) const { return token_ids == nullptr ? column : token_ids[column]; }
};

constexpr int32_t kNone = -1;

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}

// All lanes of a warp get the sum over j of x[j] * matrix[row, j].
__device__ float warp_dot(const Matrix& matrix, int64_t row, const float* x, int32_t n) {
  float sum = 0;
  matrix.visit(row, [&](const auto* values) {
#pragma unroll 8
    for (int32_t j = static_cast<int32_t>(threadIdx.x) % 32; j < n; j += 32) {
      sum += x[j] * static_cast<float>(values[j]);
    }
  });
  return warp_sum(sum);
}

// Makes a segment's candidates of those of slices, a warp a row. What the walk will read of the tables is known then,
// but for its order: it comes while the first rows are made.
__device__ void take_candidates(const WalkArgs& args, const ChoiceSegment& segment) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) / 32; i < segment.rows; i += kWarps) {
    const int64_t row = int64_t{segment.row_begin} + i, at = row * args.width + lane;
    const Key* const of_slices = args.of_slices + row * args.slices * (args.top_k + 1);
    const Key key = best_of_slices(of_slices, args.slices, args.top_k);
    int32_t column = lane < args.top_k && key != 0 ? choice::id_of(key) : kNone;
    float value = choice::value_of(key);
    if (args.width > args.top_k) {
      Key drawn = 0;
      for (int32_t s = lane; s < args.slices; s += 32) drawn = max(drawn, of_slices[s * (args.top_k + 1) + args.top_k]);
      for (int step = 16; step > 0; step /= 2) drawn = max(drawn, __shfl_xor_sync(0xffffffff, drawn, step));
      const bool whole = __shfl_sync(0xffffffff, column, args.top_k - 1) != kNone;
      const bool number = isfinite(__shfl_sync(0xffffffff, value, 0));
      const int32_t other = drawn == 0 || !whole || !number ? kNone : choice::id_of(drawn);
      const bool known = __any_sync(0xffffffff, lane < args.top_k && column == other);
      if (lane == args.top_k && other != kNone && !known) {
        column = other;
        value = args.logits[row * args.vocab + other];
      }
    }
    if (lane >= args.width) continue;
    args.columns[at] = column;
    args.values[at] = value;
    if (column == kNone) continue;
    args.successor.prefetch(column);
    args.predecessor.prefetch(args.token_of(column));
  }
}

// What a warp, a lane a candidate, makes of a row's scores, those over the temperature and those with noise. chance:
// the head's.
__device__ TokenId choose_one(const WalkArgs& args, const choice::DeviceRule& rule, bool filtered, int64_t row,
                              const float* scores, const float* noisy, float chance) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t column = lane < args.width ? args.columns[row * args.width + lane] : kNone;
  const float score = column != kNone ? scores[lane] : -INFINITY;
  Key best = column != kNone && noisy[lane] > -INFINITY ? choice::key_of(noisy[lane], lane) : 0;
  float highest = score;
  for (int step = 16; step > 0; step /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, step));
  }
  float weight = column != kNone ? expf(score - highest) : 0;
  if (filtered) {
    int32_t better = 0;
    float before = 0;  // the weights of those before it in the order of scores
    for (int32_t i = 0; i < 32; ++i) {
      const float other = __shfl_sync(0xffffffff, score, i), of_other = __shfl_sync(0xffffffff, weight, i);
      if (!(other > score) && (other != score || i >= lane)) continue;
      ++better;
      before += of_other;
    }
    if (column == kNone || !counts(rule, rule.has_min_p != 0, score, highest, better)) weight = 0;
    if (rule.top_p < 1.0f && before >= rule.top_p * warp_sum(weight)) weight = 0;
    best = weight != 0 && noisy[lane] > -INFINITY ? choice::key_of(noisy[lane], lane) : 0;
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffff, best, step));
  }
  const float weights = warp_sum(weight);
  const int32_t chosen = best == 0 ? 0 : choice::id_of(best);
  float probability = expf(__shfl_sync(0xffffffff, score, chosen) - highest) / weights;
  if (args.confidence != nullptr) probability = chance;
  const int32_t of_chosen = __shfl_sync(0xffffffff, column, chosen);  // the first lane's if there are no candidates
  if (of_chosen == kNone) probability = 0;
  const TokenId token = args.token_of(max(of_chosen, 0));
  if (threadIdx.x == 0) {
    args.tokens[row] = token;
    args.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  }
  return token;
}

// A block a segment, a warp a candidate or an output of W. Each warp makes the choice by itself.
__global__ void __launch_bounds__(kThreads) walk_kernel(WalkArgs args) {
  __shared__ float inputs[2 * kMaxSelectorRank];  // s, then e
  __shared__ float raw[3 * kMaxSelectorRank];     // hidden + W's product
  __shared__ float query[kMaxSelectorRank];
  __shared__ float scores[kMaxCandidates], noisy[kMaxCandidates];
  __shared__ float chance;
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
  const float divisor = rule.divisor;
  const bool greedy = rule.greedy != 0, filtered = !greedy && has_filter(rule);
  take_candidates(args, segment);
  __syncthreads();
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    int32_t column = kNone;  // this warp's candidate: it comes while the token before is looked up
    float logit = 0;
    const auto take = [&](int32_t c) {
      column = c < args.width ? args.columns[row * args.width + c] : kNone;
      logit = c < args.width ? args.values[row * args.width + c] : 0;
    };
    take(warp);
    const float* hidden = args.hidden + row * args.outputs;
    for (int32_t j = thread; j < args.rank; j += kThreads) {
      embedding[j] = args.predecessor.at(previous, j);
      if (args.inputs == 0) query[j] = query_element(args.scoring, hidden, args.rank, j, embedding[j], inputs[j]);
    }
    __syncthreads();
    if (args.inputs > 0) {
      const float* x = embedding + args.rank - args.inputs;
      for (int32_t j = warp; j < args.outputs; j += kWarps) {
        const float sum = warp_dot(args.weight, j, x, args.inputs);
        if (lane == 0) raw[j] = hidden[j] + sum;
      }
      __syncthreads();
      for (int32_t j = thread; j < args.rank; j += kThreads) {
        query[j] = query_element(args.scoring, raw, args.rank, j, embedding[j], inputs[j]);
      }
      __syncthreads();
    }
    for (int32_t c = warp; column != kNone; take(c += kWarps)) {
      const float sum = warp_dot(args.successor, column, query, args.rank);
      if (lane != 0) continue;
      const float score = (logit + sum) / divisor;
      scores[c] = noisy[c] = score;
      if (greedy) continue;
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
    previous = choose_one(args, rule, filtered, row, scores, noisy, chance);
  }
}

Matrix matrix_of(const TensorView& view, int64_t first = 0) {
  if (view.data == nullptr) return {};
  return {view.data, view.dtype, view.dim(1), first};
}

// Two kernels: one finds the candidates of slices of rows, the other walks.
void select_cuda(Stream& stream, const SelectorTask& task, Arena& scratch) {
  const int64_t rows = task.logits.dim(0), vocab = task.logits.dim(1), slices = (vocab + kSlice - 1) / kSlice;
  Key* const of_slices = static_cast<Key*>(
      scratch.take(DType::kU8, {rows * slices * (task.top_k + 1) * static_cast<int64_t>(sizeof(Key))}).data);
  WalkArgs args = {};
  const int64_t rank = task.predecessor.dim(1);
  const ScoringSizes sizes = sizes_of(task.scoring);
  args.scoring = task.scoring;
  args.outputs = static_cast<int32_t>(sizes.hidden * rank);
  args.inputs = static_cast<int32_t>(sizes.inputs * rank);
  args.rank = static_cast<int32_t>(rank);
  args.top_k = task.top_k;
  args.width = std::min(task.top_k + 1, kMaxCandidates);
  args.logits = static_cast<const float*>(task.logits.data);
  args.vocab = vocab;
  args.hidden = static_cast<const float*>(task.hidden.data);
  args.confidence = static_cast<const float*>(task.confidence.data);
  args.predecessor = matrix_of(task.predecessor);
  args.successor = matrix_of(task.successor);
  args.weight = matrix_of(task.weight.matrix, task.weight.first);
  args.confidence_weight = matrix_of(task.confidence_weight.matrix, task.confidence_weight.first);
  args.of_slices = of_slices;
  args.slices = static_cast<int32_t>(slices);
  args.values = scratch.take(DType::kF32, {rows, args.width}).as<float>();
  args.columns = scratch.take(DType::kI32, {rows, args.width}).as<int32_t>();
  args.token_ids = static_cast<const TokenId*>(task.token_ids.data);
  args.segments = task.segments.data();
  args.slots = task.slots;
  args.tokens = task.tokens;
  args.probability = task.probability;
  args.rules = static_cast<const choice::CudaSamplerState&>(*task.state).slots();
  const Draws draws = {args.token_ids, args.segments, static_cast<int32_t>(task.segments.size()), args.rules};
  cuda::launch(find_kernel, {.grid = cuda::dims(rows, slices), .block = dim3(kThreads), .early = true}, stream,
               args.logits, vocab, task.top_k, draws, of_slices);
  cuda::launch(walk_kernel, {.grid = cuda::dims(std::ssize(task.segments)), .block = dim3(kThreads), .early = true},
               stream, args);
}

}  // namespace

const SelectorKernels SelectorKernels::kCuda = {select_cuda};

}  // namespace volley::ops
