// Choosing the experts of a row by a warp, with the experts spread over its lanes.
#pragma once

#include <climits>

#include "ops/router/router_cuda.h"
#include "ops/router/router_rule.h"

namespace volley::ops {

constexpr unsigned kAll = 0xffffffff;

struct RouteArgs {
  RouterRule rule;
  int rows = 0;
  const float* logits = nullptr;
  const float* logit_bias = nullptr;
  const float* choice_bias = nullptr;
  const float* expert_scale = nullptr;
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
  int32_t* zeroed = nullptr;
  int64_t zero_count = 0;
};

template <typename T>
T* data_of(const TensorView& view) {
  return view.data == nullptr ? nullptr : view.as<T>();
}

inline RouteArgs route_args(const RouterRule& rule, const RouteCall& call, const Routing& out) {
  RouteArgs args;
  args.rule = rule;
  args.rows = static_cast<int>(out.rows());
  args.logits = data_of<float>(call.logits);
  args.logit_bias = data_of<float>(call.logit_bias);
  args.choice_bias = data_of<float>(call.choice_bias);
  args.expert_scale = data_of<float>(call.expert_scale);
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
  args.zeroed = data_of<int32_t>(call.zeroed);
  args.zero_count = args.zeroed == nullptr ? 0 : call.zeroed.count();
  return args;
}

// By `threads` threads, of which this is one.
__device__ inline void zero_counters(const RouteArgs& args, int64_t thread, int64_t threads) {
  for (int64_t i = thread; i < args.zero_count; i += threads) args.zeroed[i] = 0;
}

__device__ inline float warp_sum(float v) {
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
    divisor = sigmoids ? sum + rule.sum_floor : sum;
  } else if (!sigmoids) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) all += expf(own.scores[i] - highest);  // -infinity where there is no expert
    divisor = warp_sum(all);
  }
  weight = weight / divisor * rule.scaling;
  if (args.expert_scale != nullptr && lane < rule.top_k) weight *= args.expert_scale[expert];
}

// simulated_experts(), by a warp: lane s < top_k ends with the expert of slot s.
__device__ inline int simulate_experts(const RouteArgs& args, int32_t slot, int32_t position) {
  const int lane = threadIdx.x % 32;
  SimulatedRouting how;
  how.seed = args.seed;
  how.layer = args.layer;
  const int rank =
      simulated_rank(args.rule, simulated_row(how, slot, position), lane);  // rank among those that are left
  int chosen = INT_MAX;                                                     // the lanes' are ascending
  for (int i = 0; i < args.rule.top_k; ++i) {
    const int wanted = __shfl_sync(kAll, rank, i);
    // Counts the chosen experts at or below the wanted rank; the more there are, the higher the expert.
    const int at = __popc(__ballot_sync(kAll, lane < i && chosen - lane <= wanted));
    const int before = __shfl_up_sync(kAll, chosen, 1);
    if (lane == at) {
      chosen = wanted + at;
    } else if (lane > at && lane <= i) {
      chosen = before;
    }
  }
  return chosen;
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
      expert = simulate_experts(args, slot, args.positions[row]);
      weight = args.rule.scaling / static_cast<float>(top_k);
    } else {
      choose<kEach>(args, row, choice, expert, weight);
    }
  }
  if (lane < top_k) {
    expert = args.rule.own_number(expert);
    if (expert < 0) weight = 0;
    args.experts[row * top_k + lane] = expert;
    if (chosen_too != nullptr) chosen_too[row * top_k + lane] = expert;
    args.weights[row * top_k + lane] = weight;
  }
}

}  // namespace volley::ops
