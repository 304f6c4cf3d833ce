// Plans the rows of one call, and makes the choices that need a single read of the logits: greedy ones and plain
// Gumbel-max. choose_rows_cuda.cu makes the others.
#include "ops/choice/choice_kernels.h"

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/choice/choose_rows_cuda.h"
#include "ops/choice/noise.cuh"

namespace volley::ops::choice {

// A row that one look suffices for, or slot -1.
struct PlainRow {
  int32_t slot;
  int32_t index;
};

// One block's results for its slice of a row.
struct Finding {
  Key best;      // best of the scores
  float most;    // the highest logit
  int32_t bad;   // NaN or +inf among them
  float weight;  // sum of exp((logit - most) / temperature), if probabilities are requested
  int32_t unused;
};

namespace {

struct PlanArgs {
  const ChoiceSegment* segments;
  int32_t segment_count, rows;
  const DeviceSlot* slots;
  int32_t slot_count;
  bool wants_logprobs;
  PlainRow* plain;     // [rows]
  uint32_t* arrivals;  // [rows]
  RowItem* items;      // [rows]
  int32_t* item_count;
  uint8_t* whole;  // [rows] or null: RowSummaries::whole
};

constexpr int kPlanThreads = 512;

// Whether any step changes the logits before temperature. index: that of the token to choose.
__device__ bool adjusts(const DeviceSlot& slot, const ChoiceSegment& segment, int32_t index) {
  return slot.penalised != 0 || slot.bias_count > 0 || segment.mask != nullptr ||
         (slot.end_count > 0 && index - slot.prompt_length < slot.min_tokens);
}

__device__ void plan_segment(const PlanArgs& args, int32_t s, int32_t* item_count) {
  const ChoiceSegment segment = args.segments[s];
  if (segment.rows == 0) return;
  const bool fits = segment.rows > 0 && segment.row_begin >= 0 && segment.row_begin <= args.rows - segment.rows;
  if (!fits || segment.slot < 0 || segment.slot >= args.slot_count) __trap();  // our bug: the next call reports it
  const DeviceSlot& slot = args.slots[segment.slot];
  if (slot.started == 0) __trap();
  const auto want_whole = [&](int32_t i) {
    if (args.whole != nullptr) args.whole[segment.row_begin + i] = 1;
  };
  if (segment.prefix == nullptr && slot.penalised != 0) {  // each choice counts in the next one's penalties
    args.items[atomicAdd(item_count, 1)] = {s, 0, segment.rows};
    for (int32_t i = 0; i < segment.rows; ++i) want_whole(i);
    return;
  }
  const bool filtered = slot.has_min_p != 0 || slot.top_k != 0 || slot.top_p < 1.0f;
  const bool whole = filtered || (args.wants_logprobs && slot.logprobs >= 0);
  for (int32_t i = 0; i < segment.rows; ++i) {
    if (whole || adjusts(slot, segment, segment.first_index + i)) {
      args.items[atomicAdd(item_count, 1)] = {s, i, 1};
      want_whole(i);
    } else {
      args.plain[segment.row_begin + i] = {segment.slot, segment.first_index + i};
      if (slot.greedy == 0) want_whole(i);
    }
  }
}

// One block.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(PlanArgs args) {
  __shared__ int32_t item_count;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  for (int32_t row = threadIdx.x; row < args.rows; row += kPlanThreads) {
    args.plain[row] = {-1, 0};
    args.arrivals[row] = 0;
    if (args.whole != nullptr) args.whole[row] = 0;
  }
  if (threadIdx.x == 0) item_count = 0;
  __syncthreads();
  for (int32_t s = threadIdx.x; s < args.segment_count; s += kPlanThreads) plan_segment(args, s, &item_count);
  __syncthreads();
  if (threadIdx.x == 0) *args.item_count = item_count;
}

struct PlainArgs {
  const float* logits;
  int32_t vocab;
  const DeviceSlot* slots;
  const PlainRow* plain;
  const uint8_t* whole;  // null: all rows are
  Finding* findings;     // [rows][slices]
  uint32_t* arrivals;
  TokenId* tokens;
  uint8_t* finite;
  float* probability;
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroups = 8;  // groups of four tokens for each thread
constexpr int32_t kSlice = kThreads * kGroups * 4;

__device__ float4 load_group(const float* logits, int32_t id, int32_t vocab) {
  if (vocab % 4 == 0) {
    return id < vocab ? *reinterpret_cast<const float4*>(logits + id)
                      : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  }
  const auto at = [&](int32_t v) { return v < vocab ? logits[v] : -INFINITY; };
  return make_float4(at(id), at(id + 1), at(id + 2), at(id + 3));
}

__device__ float highest(float4 v) {
  return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}

__device__ Key warp_highest(Key key) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) key = max(key, __shfl_xor_sync(0xffffffff, key, lane));
  return key;
}

// The same in every thread.
__device__ Finding merge_block(Finding f) {
  __shared__ Finding warps[kWarps];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) f.most = fmaxf(f.most, __shfl_xor_sync(0xffffffff, f.most, lane));
  f.best = warp_highest(f.best);
  f.bad = __any_sync(0xffffffff, f.bad);
  __syncthreads();  // the last merge has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = f;
  __syncthreads();
  f = warps[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    f.best = max(f.best, warps[i].best);
    f.most = fmaxf(f.most, warps[i].most);
    f.bad |= warps[i].bad;
  }
  return f;
}

// The same in every thread; added in one order whatever else runs.
__device__ float sum_over_block(float mine) {
  __shared__ float warps[kWarps];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) mine += __shfl_xor_sync(0xffffffff, mine, lane);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += warps[i];
  return sum;
}

__device__ float weight_of(const float4 (&v)[kGroups], float most, float inverse) {
  float weight = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    for (const float value : {v[g].x, v[g].y, v[g].z, v[g].w}) weight += __expf((value - most) * inverse);
  }
  return sum_over_block(weight);
}

__device__ Key best_greedy(const float4 (&v)[kGroups], int32_t first) {
  float most = -INFINITY;
  int32_t id = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float values[4] = {v[g].x, v[g].y, v[g].z, v[g].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (values[j] > most) most = values[j], id = first + g * kThreads * 4 + j;
    }
  }
  return most > -INFINITY ? key_of(most, id) : 0;
}

// The noisy score of a token, exactly; 0 beyond the vocabulary.
__device__ Key noisy(const float* logits, int32_t vocab, const DeviceSlot& slot, int32_t index, int32_t id) {
  if (id >= vocab) return 0;
  const uint4 words = philox(slot.seed[0], slot.seed[1], static_cast<uint32_t>(id) / 4, static_cast<uint32_t>(index),
                             slot.choice_index);
  return key_of(logits[id] / slot.divisor + gumbel(word_of(words, id)), id);
}

// most: the highest logit of the block's slice, finite. The likeliest winner of each warp is scored first; after that
// few others can still win.
__device__ Key best_noisy(const float4 (&v)[kGroups], int32_t first, const float* logits, int32_t vocab,
                          const DeviceSlot& slot, int32_t index, float most) {
  static_assert(kWarps * 4 == 32);
  __shared__ int32_t favourites[kWarps];  // first token of the group
  const float divisor = slot.divisor, inverse = 1.0f / divisor;
  const uint32_t k0 = slot.seed[0], k1 = slot.seed[1], c2 = slot.choice_index;
  Contest contest(most * inverse, most / divisor + kGumbelMin);
  float odds[kGroups];
  float least = INFINITY;
  int32_t favourite = -1;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const auto block = static_cast<uint32_t>(first / 4 + g * kThreads);
    // Off by two roundings, which the contest's slack covers.
    odds[g] =
        contest.odds(highest(v[g]) * inverse, [&] { return philox(k0, k1, block, static_cast<uint32_t>(index), c2); });
    if (odds[g] < least) least = odds[g], favourite = g;
  }
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t lowest = __reduce_min_sync(0xffffffff, __float_as_uint(least));  // odds are not negative
  const bool leads = __ffs(__ballot_sync(0xffffffff, __float_as_uint(least) == lowest)) - 1 == static_cast<int>(lane);
  if (leads) favourites[warp] = favourite < 0 ? vocab : first + favourite * kThreads * 4;
  __syncthreads();
  Key best = warp_highest(noisy(logits, vocab, slot, index, favourites[lane / 4] + static_cast<int32_t>(lane % 4)));
  if (best != 0) contest.raise(value_of(best));
  uint32_t open = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (odds[g] < INFINITY && contest.open(odds[g]) && !(leads && g == favourite)) open |= 1u << g;
  }
  for (; open != 0; open &= open - 1) {
    const int32_t id = first + (__ffs(open) - 1) * kThreads * 4;
    for (int32_t j = 0; j < 4; ++j) best = max(best, noisy(logits, vocab, slot, index, id + j));
  }
  return best;
}

__device__ void finish_row(const PlainArgs& args, int32_t row, const DeviceSlot& slot, const Finding& f) {
  const bool usable = f.bad == 0 && isfinite(f.most / slot.divisor);
  const TokenId token = usable ? id_of(f.best) : 0;
  args.tokens[row] = token;
  if (args.finite != nullptr) args.finite[row] = usable ? 1 : 0;
  if (args.probability == nullptr) return;
  const float logit = slot.greedy != 0 ? f.most : args.logits[int64_t{row} * args.vocab + token];
  args.probability[row] = usable ? __expf((logit - f.most) / slot.divisor) / f.weight : 0;
}

// A greedy row of which the product left a summary.
__device__ void choose_from_summary(const PlainArgs& args, int32_t row, const DeviceSlot& slot) {
  const auto* groups = reinterpret_cast<const GroupSummary*>(args.logits + int64_t{row} * args.vocab);
  const auto count = static_cast<int32_t>(summary_groups(args.vocab));
  Finding f = {0, -INFINITY, 0, 0, 0};
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const float4 group = *reinterpret_cast<const float4*>(groups + i);
    const float highest = group.x;
    f.most = fmaxf(f.most, highest);
    f.bad |= !(highest < INFINITY);  // NaN too
    if (highest > -INFINITY) f.best = max(f.best, key_of(highest, __float_as_int(group.y)));
  }
  f = merge_block(f);
  if (args.probability != nullptr && isfinite(f.most)) {
    float weight = 0;
    for (int32_t i = threadIdx.x; i < count; i += kThreads) {
      if (isfinite(groups[i].highest)) weight += groups[i].weight * __expf(groups[i].highest - f.most);
    }
    f.weight = sum_over_block(weight);
  }
  if (threadIdx.x == 0) finish_row(args, row, slot, f);
}

// Block (slice, row). The last block of a row merges its slices; the maximum of the keys does not depend on the order.
// A summary is the first block's.
__global__ void __launch_bounds__(kThreads) plain_kernel(PlainArgs args) {
  __shared__ bool last;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int32_t row = blockIdx.y;
  const PlainRow plain = args.plain[row];
  if (plain.slot < 0) return;
  const DeviceSlot& slot = args.slots[plain.slot];
  if (args.whole != nullptr && args.whole[row] == 0) {
    if (blockIdx.x == 0) choose_from_summary(args, row, slot);
    return;
  }
  const float* logits = args.logits + int64_t{row} * args.vocab;
  const int32_t first = blockIdx.x * kSlice + threadIdx.x * 4;
  float4 v[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) v[g] = load_group(logits, first + g * kThreads * 4, args.vocab);
  Finding f = {0, -INFINITY, 0, 0, 0};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    f.most = fmaxf(f.most, highest(v[g]));
    f.bad |= !(v[g].x < INFINITY) || !(v[g].y < INFINITY) || !(v[g].z < INFINITY) || !(v[g].w < INFINITY);  // NaN too
  }
  if (slot.greedy != 0) {
    f.best = best_greedy(v, first);
    f = merge_block(f);
  } else {
    f = merge_block(f);
    if (isfinite(f.most) && f.bad == 0) {
      f.best = best_noisy(v, first, logits, args.vocab, slot, plain.index, f.most);
      f = merge_block(f);
    }
  }
  if (args.probability != nullptr && isfinite(f.most)) f.weight = weight_of(v, f.most, 1.0f / slot.divisor);
  Finding* findings = args.findings + int64_t{row} * gridDim.x;
  if (threadIdx.x == 0) {
    findings[blockIdx.x] = f;
    __threadfence();
    last = atomicAdd(args.arrivals + row, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  Finding whole = {0, -INFINITY, 0, 0, 0};
  for (uint32_t i = threadIdx.x; i < gridDim.x; i += kThreads) {
    const Finding& other = findings[i];
    whole.best = max(whole.best, __ldcg(&other.best));
    whole.most = fmaxf(whole.most, __ldcg(&other.most));
    whole.bad |= __ldcg(&other.bad);
  }
  whole = merge_block(whole);
  if (args.probability != nullptr) {
    float weight = 0;
    for (uint32_t i = threadIdx.x; i < gridDim.x && isfinite(whole.most); i += kThreads) {
      const float most = __ldcg(&findings[i].most);
      if (isfinite(most)) weight += __ldcg(&findings[i].weight) * __expf((most - whole.most) / slot.divisor);
    }
    whole.weight = sum_over_block(weight);
  }
  if (threadIdx.x == 0) finish_row(args, row, slot, whole);
}

unsigned slices(int64_t vocab) {
  return static_cast<unsigned>((vocab + kSlice - 1) / kSlice);
}

static_assert(sizeof(PlainRow) == 8 && sizeof(RowItem) == 12 && sizeof(Finding) == 24);

ChoicePlan plan_choices_cuda(Stream& stream, const ChoiceTask& task, bool summarises, Arena& scratch) {
  const auto& sampler = static_cast<const CudaSamplerState&>(*task.state);
  const int64_t rows = task.rows, vocab = sampler.vocab();
  VOLLEY_CHECK_LE(rows, 65535);  // the grid's second dimension
  ChoicePlan plan;
  plan.task = task;
  DevicePlan& device = plan.device;
  device.plain = static_cast<PlainRow*>(scratch.take(DType::kI32, {rows, 2}).data);
  device.arrivals = static_cast<uint32_t*>(scratch.take(DType::kI32, {rows}).data);
  device.items = static_cast<RowItem*>(scratch.take(DType::kI32, {rows, 3}).data);
  device.item_count = static_cast<int32_t*>(scratch.take(DType::kI32, {1}).data);
  device.findings = static_cast<Finding*>(scratch.take(DType::kI32, {rows, slices(vocab), 6}).data);

  PlanArgs args = {};
  args.segments = task.segments.data();
  args.segment_count = static_cast<int32_t>(task.segments.size());
  args.rows = static_cast<int32_t>(rows);
  args.slots = sampler.slots();
  args.slot_count = sampler.slot_count();
  args.wants_logprobs = task.out.logprobs != nullptr;
  args.plain = device.plain;
  args.arrivals = device.arrivals;
  args.items = device.items;
  args.item_count = device.item_count;
  if (summarises) {
    VOLLEY_CHECK_EQ(vocab % 4, 0);  // a summary's alignment
    args.whole = static_cast<uint8_t*>(scratch.take(DType::kU8, {rows}).data);
    plan.summaries = {args.whole, task.out.probability != nullptr};
  }
  cuda::launch(plan_kernel, {.grid = dim3(1), .block = dim3(kPlanThreads), .early = true}, stream, args);
  return plan;
}

void choose_cuda(Stream& stream, const ChoicePlan& plan, TensorView logits, Arena& /*scratch*/) {
  const auto& sampler = static_cast<const CudaSamplerState&>(*plan.task.state);
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  VOLLEY_CHECK_EQ(vocab, sampler.vocab());
  VOLLEY_CHECK(vocab % 4 != 0 || reinterpret_cast<uintptr_t>(logits.data) % 16 == 0);
  PlainArgs plain = {};
  plain.logits = logits.as<float>();
  plain.vocab = static_cast<int32_t>(vocab);
  plain.slots = sampler.slots();
  plain.plain = plan.device.plain;
  plain.whole = plan.summaries.whole;
  plain.findings = plan.device.findings;
  plain.arrivals = plan.device.arrivals;
  plain.tokens = plan.task.out.tokens;
  plain.finite = plan.task.out.finite;
  plain.probability = plan.task.out.probability;
  cuda::launch(plain_kernel, {.grid = cuda::dims(slices(vocab), rows), .block = dim3(kThreads), .early = true}, stream,
               plain);

  ChooseRowsArgs args;
  args.logits = plain.logits;
  args.vocab = plain.vocab;
  args.segments = plan.task.segments.data();
  args.slots = plain.slots;
  args.items = plan.device.items;
  args.item_count = plan.device.item_count;
  args.out = plan.task.out;
  choose_rows_cuda(stream, args, sampler.teams(), rows);
}

}  // namespace

const ChoiceKernels ChoiceKernels::kCuda = {plan_choices_cuda, choose_cuda, CudaSamplerState::create};

}  // namespace volley::ops::choice
