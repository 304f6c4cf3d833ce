// A warp chooses for a row, with the experts spread over its lanes; then one block puts the entries in the order of
// their experts. Up to kRowsInOneKernel rows, the same block does both.
#include <algorithm>

#include "base/math.h"
#include "device/cuda/block_sum.cuh"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/router/router_kernels.h"
#include "ops/router/router_rule.h"

namespace volley::ops {
namespace {

constexpr unsigned kAll = 0xffffffff;
constexpr int kRouteWarps = 8;
constexpr int kGroupWarps = 32, kGroupThreads = kGroupWarps * 32;
constexpr int kAhead = 8;  // experts that a lane reads at once when it groups

struct RouteArgs {
  RouterRule rule;
  int rows = 0;
  const float* logits = nullptr;
  const float* logit_bias = nullptr;
  const float* choice_bias = nullptr;
  const int32_t* row_slots = nullptr;
  int32_t skipped_slot = -1;
  const int32_t* positions = nullptr;  // simulated
  uint32_t seed = 0, layer = 0;
  int32_t* experts = nullptr;
  float* weights = nullptr;
  int32_t* entries = nullptr;
  int32_t* offsets = nullptr;
  int32_t* touched = nullptr;
  int32_t* touched_count = nullptr;
  int64_t* touched_total = nullptr;
};

__device__ float warp_sum(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(kAll, v, lane);
  return v;
}

// The lane's experts are lane, lane + 32, …: kEach of them.
template <int kEach>
struct LaneScores {
  float scores[kEach];
  uint32_t order[kEach];  // 0: cannot be chosen
};

// Experts of groups that are not kept cannot be chosen. `choice`: the warp's scores of all experts, in shared memory;
// lane g looks after group g.
template <int kEach>
__device__ void limit_groups(const RouterRule& rule, const float* choice, LaneScores<kEach>& own) {
  const int lane = threadIdx.x % 32, size = rule.experts / rule.groups;
  uint32_t sum = 0;
  if (lane < rule.groups) {
    float highest = -INFINITY, second = -INFINITY;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      const float v = choice[e];
      if (v != v) continue;
      second = fmaxf(second, fminf(highest, v));
      highest = fmaxf(highest, v);
    }
    sum = score_order(highest + second);
  }
  uint32_t kept = 0;  // a bit a group
  for (int i = 0; i < rule.top_groups; ++i) {
    const uint32_t best = __reduce_max_sync(kAll, sum);
    const int group = __ffs(static_cast<int>(__ballot_sync(kAll, sum == best))) - 1;
    kept |= 1u << group;
    if (lane == group) sum = 0;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * 32 + lane;
    if (e < rule.experts && (kept >> (e / size) & 1) == 0) own.order[i] = 0;
  }
}

// The expert that comes next in order, of equals the lowest, and its score; it cannot be chosen again.
template <int kEach>
__device__ int take_best(LaneScores<kEach>& own, float& score) {
  const int lane = threadIdx.x % 32;
  uint32_t best = 0;
  int at = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (own.order[i] > best) {
      best = own.order[i];
      at = i;
    }
  }
  const uint32_t highest = __reduce_max_sync(kAll, best);
  const unsigned expert = __reduce_min_sync(kAll, best == highest ? static_cast<unsigned>(at * 32 + lane) : kAll);
  float value = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (expert == static_cast<unsigned>(i * 32 + lane)) {
      value = own.scores[i];
      own.order[i] = 0;
    }
  }
  score = __shfl_sync(kAll, value, static_cast<int>(expert % 32));
  return static_cast<int>(expert);
}

template <int kEach>
__device__ void read_scores(const RouteArgs& args, int64_t row, float* choice, LaneScores<kEach>& own) {
  const int lane = threadIdx.x % 32;
  const bool sigmoids = args.rule.score == RouterScore::kSigmoid;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * 32 + lane;
    own.scores[i] = -INFINITY;
    own.order[i] = 0;
    if (e >= args.rule.experts) continue;
    float logit = args.logits[row * args.rule.experts + e];
    if (args.logit_bias != nullptr) logit += args.logit_bias[e];
    own.scores[i] = sigmoids ? 1.0f / (1.0f + expf(-logit)) : logit;
    const float by = args.choice_bias == nullptr ? own.scores[i] : own.scores[i] + args.choice_bias[e];
    own.order[i] = score_order(by);
    if (args.rule.groups > 1) choice[e] = by;
  }
}

// Lane s ends with slot s: its expert and weight.
template <int kEach>
__device__ void choose(const RouteArgs& args, int64_t row, float* choice, int& expert, float& weight) {
  const RouterRule& rule = args.rule;
  const int lane = threadIdx.x % 32;
  LaneScores<kEach> own;
  read_scores<kEach>(args, row, choice, own);
  if (rule.groups > 1) {
    __syncwarp();
    limit_groups<kEach>(rule, choice, own);
    __syncwarp();  // the next row's may come
  }
  const bool sigmoids = rule.score == RouterScore::kSigmoid;
  float highest = 0, sum = 0;
  for (int s = 0; s < rule.top_k; ++s) {
    float score;
    const int best = take_best<kEach>(own, score);
    if (s == 0) highest = score;
    const float w = sigmoids ? score : expf(score - highest);
    sum += w;
    if (lane == s) {
      expert = best;
      weight = w;
    }
  }
  float divisor = 1;
  if (rule.renormalise) {
    divisor = sigmoids ? sum + 1e-20f : sum;
  } else if (!sigmoids) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) all += expf(own.scores[i] - highest);  // -infinity where there is no expert
    divisor = warp_sum(all);
  }
  weight = weight / divisor * rule.scaling;
}

// chosen_too: where else its experts go, or null.
template <int kEach>
__device__ void route_row(const RouteArgs& args, int64_t row, float* choice, int32_t* chosen_too = nullptr) {
  const int lane = threadIdx.x % 32, top_k = args.rule.top_k;
  const int32_t slot = args.row_slots == nullptr ? 0 : args.row_slots[row];
  int expert = -1;
  float weight = 0;
  if (args.row_slots == nullptr || slot != args.skipped_slot) {
    if (args.positions != nullptr) {
      int32_t chosen[kMaxExpertsPerRow];
      SimulatedRouting how;
      how.seed = args.seed;
      how.layer = args.layer;
      simulated_experts(args.rule, how, slot, args.positions[row], chosen);
      for (int s = 0; s < top_k; ++s) {
        if (lane == s) expert = chosen[s];
      }
      weight = args.rule.scaling / static_cast<float>(top_k);
    } else {
      choose<kEach>(args, row, choice, expert, weight);
    }
  }
  if (lane < top_k) {
    args.experts[row * top_k + lane] = expert;
    if (chosen_too != nullptr) chosen_too[row * top_k + lane] = expert;
    args.weights[row * top_k + lane] = weight;
  }
}

// Entries in runs of whole warps, a run for each of the first warps of a block.
struct Runs {
  const int32_t* experts;  // of all entries
  int count, run, warps;

  __device__ Runs(const int32_t* experts, int count)
      : experts(experts),
        count(count),
        run(max(1, (count + kGroupThreads - 1) / kGroupThreads) * 32),
        warps((count + run - 1) / run) {}

  // Entries of a warp's run, 32 at a time and in order: use(entry, expert, lanes of the same expert).
  template <typename Use>
  __device__ void for_entries(int warp, const Use& use) const {
    const int lane = threadIdx.x % 32, begin = min(warp * run, count), end = min(begin + run, count);
    for (int at = begin; at < end; at += 32 * kAhead) {
      int some[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int entry = at + i * 32 + lane;
        some[i] = entry < end ? experts[entry] : -1;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (at + i * 32 < end) use(at + i * 32 + lane, some[i], __match_any_sync(kAll, some[i]));
      }
    }
  }
};

// What a thread knows of an expert: how many entries it has, and which is the first of them in order.
__device__ void write_expert(const RouteArgs& args, int expert, int first, int count) {
  const int rank = cuda::block_sum_before<kGroupWarps>(count > 0 ? 1 : 0);
  if (expert >= args.rule.experts) return;
  args.offsets[expert] = first;
  if (count > 0) args.touched[rank] = expert;
  if (expert != args.rule.experts - 1) return;
  const int touched = rank + (count > 0 ? 1 : 0);
  args.offsets[args.rule.experts] = first + count;
  *args.touched_count = touched;
  if (args.touched_total != nullptr) *args.touched_total += touched;
}

// By one block: a stable counting sort. chosen: the experts of all entries. counts: [kGroupWarps][experts] in shared
// memory.
__device__ void group_entries(const RouteArgs& args, const int32_t* chosen, int* counts) {
  const int experts = args.rule.experts, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Runs runs(chosen, args.rows * args.rule.top_k);
  int* own = counts + warp * experts;
  if (warp < runs.warps) {
    for (int e = lane; e < experts; e += 32) own[e] = 0;
    __syncwarp();
    runs.for_entries(warp, [&](int, int expert, unsigned same) {
      if (expert >= 0 && lane == __ffs(static_cast<int>(same)) - 1) own[expert] += __popc(same);
      __syncwarp();
    });
  }
  __syncthreads();
  // A thread an expert: where each warp's entries of it begin, first among its own.
  const int e = static_cast<int>(threadIdx.x);
  int total = 0;
  if (e < experts) {
    for (int w = 0; w < runs.warps; ++w) {
      const int count = counts[w * experts + e];
      counts[w * experts + e] = total;
      total += count;
    }
  }
  const int first = cuda::block_sum_before<kGroupWarps>(total);
  if (e < experts) {
    for (int w = 0; w < runs.warps; ++w) counts[w * experts + e] += first;
  }
  write_expert(args, e, first, total);
  __syncthreads();
  runs.for_entries(warp, [&](int entry, int expert, unsigned same) {
    int at = 0;
    if (expert >= 0) at = own[expert] + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (expert >= 0) {
      args.entries[at] = entry;
      if (lane == __ffs(static_cast<int>(same)) - 1) own[expert] += __popc(same);
    }
    __syncwarp();
  });
}

template <int kEach>
__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(const RouteArgs args) {
  __shared__ float choice[kRouteWarps][kEach * 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / 32;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  if (row < args.rows) route_row<kEach>(args, row, choice[threadIdx.x / 32]);
}

template <int kEach>
__global__ void __launch_bounds__(kGroupThreads) route_and_group_kernel(const RouteArgs args) {
  extern __shared__ int counts[];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  __shared__ int32_t chosen[kRowsInOneKernel * kMaxExpertsPerRow];
  // A warp's scores lie where it counts later.
  const int warp = threadIdx.x / 32;
  float* choice = reinterpret_cast<float*>(counts + warp * args.rule.experts);
  for (int64_t row = warp; row < args.rows; row += kGroupWarps) route_row<kEach>(args, row, choice, chosen);
  __syncthreads();
  group_entries(args, chosen, counts);
}

__global__ void __launch_bounds__(kGroupThreads) group_kernel(const RouteArgs args) {
  extern __shared__ int counts[];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  group_entries(args, args.experts, counts);
}

cuda::Launch group_launch(const RouterRule& rule) {
  cuda::Launch how;
  how.grid = dim3(1);
  how.block = dim3(kGroupThreads);
  how.shared_bytes = static_cast<size_t>(kGroupWarps) * rule.experts * sizeof(int);
  how.early = true;
  return how;
}

template <int kEach>
void launch_route(Stream& stream, const RouteArgs& args) {
  if (args.rows <= kRowsInOneKernel) {
    return cuda::launch(route_and_group_kernel<kEach>, group_launch(args.rule), stream, args);
  }
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(divide_up(args.rows, kRouteWarps)));
  how.block = dim3(kRouteWarps * 32);
  how.early = true;
  cuda::launch(route_kernel<kEach>, how, stream, args);
  cuda::launch(group_kernel, group_launch(args.rule), stream, args);
}

template <typename T>
const T* data_of(const TensorView& view) {
  return view.data == nullptr ? nullptr : view.as<T>();
}

void route_cuda(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out) {
  RouteArgs args;
  args.rule = rule;
  args.rows = static_cast<int>(out.rows());
  args.logits = data_of<float>(call.logits);
  args.logit_bias = data_of<float>(call.logit_bias);
  args.choice_bias = data_of<float>(call.choice_bias);
  args.row_slots = data_of<int32_t>(call.row_slots);
  args.skipped_slot = call.skipped_slot;
  args.positions = data_of<int32_t>(call.simulated.positions);
  args.seed = call.simulated.seed;
  args.layer = call.simulated.layer;
  args.experts = out.experts.as<int32_t>();
  args.weights = out.weights.as<float>();
  args.entries = out.entries.as<int32_t>();
  args.offsets = out.offsets.as<int32_t>();
  args.touched = out.touched.as<int32_t>();
  args.touched_count = out.touched_count.as<int32_t>();
  args.touched_total = call.touched_total;
  if (rule.experts <= 128) return launch_route<4>(stream, args);
  if (rule.experts <= 256) return launch_route<8>(stream, args);
  launch_route<16>(stream, args);
}

}  // namespace

const RouterKernels RouterKernels::kCuda = {route_cuda};

}  // namespace volley::ops
