#include "ops/router/router_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "device/cpu/thread_pool.h"
#include "ops/router/router_rule.h"

namespace volley::ops {
namespace {

// One row's experts while they are being chosen.
struct Row {
  float scores[kMaxExperts];    // logits or sigmoids, that weights are made of
  uint32_t order[kMaxExperts];  // keys by which experts are chosen; 0: cannot be chosen
  int32_t experts[kMaxExpertsPerRow];
  float weights[kMaxExpertsPerRow];
};

// Leaves the experts of the best groups: those whose two highest scores have the greatest sums, ties to the lower
// group.
void limit_groups(const RouterRule& rule, const float* choice, Row& row) {
  const int32_t size = rule.experts / rule.groups;
  uint32_t sums[kMaxExperts];
  for (int32_t g = 0; g < rule.groups; ++g) {
    float highest = -INFINITY, second = -INFINITY;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) {
      if (std::isnan(choice[e])) continue;
      second = std::max(second, std::min(highest, choice[e]));
      highest = std::max(highest, choice[e]);
    }
    sums[g] = score_order(highest + second);
  }
  bool kept[kMaxExperts] = {};
  for (int32_t i = 0; i < rule.top_groups; ++i) {
    const auto best = std::max_element(sums, sums + rule.groups) - sums;
    kept[best] = true;
    sums[best] = 0;
  }
  for (int32_t e = 0; e < rule.experts; ++e) {
    if (!kept[e / size]) row.order[e] = 0;
  }
}

void score(const RouterRule& rule, const RouteCall& call, const float* logits, Row& row) {
  const float* logit_bias = call.logit_bias.data == nullptr ? nullptr : call.logit_bias.as<float>();
  const float* choice_bias = call.choice_bias.data == nullptr ? nullptr : call.choice_bias.as<float>();
  float choice[kMaxExperts];
  for (int32_t e = 0; e < rule.experts; ++e) {
    const float logit = logit_bias == nullptr ? logits[e] : logits[e] + logit_bias[e];
    row.scores[e] = rule.score == RouterScore::kSigmoid ? sigmoid(logit) : logit;
    choice[e] = choice_bias == nullptr ? row.scores[e] : row.scores[e] + choice_bias[e];
    row.order[e] = score_order(choice[e]);
  }
  if (rule.groups > 1) limit_groups(rule, choice, row);
}

float sum_of_exponentials(const float* logits, int32_t count, float highest) {
  float sum = 0;
  for (int32_t e = 0; e < count; ++e) sum += std::exp(logits[e] - highest);
  return sum;
}

void weigh(const RouterRule& rule, const float* expert_scale, Row& row) {
  const float highest = row.scores[row.experts[0]];  // kSoftmax: the highest of all logits
  float sum = 0;
  for (int32_t s = 0; s < rule.top_k; ++s) {
    const float score = row.scores[row.experts[s]];
    row.weights[s] = rule.score == RouterScore::kSigmoid ? score : std::exp(score - highest);
    sum += row.weights[s];
  }
  float divisor = 1;
  if (rule.renormalise) {
    divisor = rule.score == RouterScore::kSigmoid ? sum + rule.sum_floor : sum;
  } else if (rule.score == RouterScore::kSoftmax) {
    divisor = sum_of_exponentials(row.scores, rule.experts, highest);
  }
  for (int32_t s = 0; s < rule.top_k; ++s) {
    row.weights[s] = row.weights[s] / divisor * rule.scaling;
    if (expert_scale != nullptr) row.weights[s] *= expert_scale[row.experts[s]];
  }
}

void choose(const RouterRule& rule, const RouteCall& call, Row& row) {
  for (int32_t s = 0; s < rule.top_k; ++s) {
    const auto best = std::max_element(row.order, row.order + rule.experts) - row.order;  // the first of equal ones
    row.experts[s] = static_cast<int32_t>(best);
    row.order[best] = 0;
  }
  weigh(rule, call.expert_scale.data == nullptr ? nullptr : call.expert_scale.as<float>(), row);
}

void route_row(const RouterRule& rule, const RouteCall& call, int64_t r, const Routing& out) {
  const int32_t slot = call.row_slots.data == nullptr ? 0 : call.row_slots.as<int32_t>()[r];
  int32_t* experts = out.experts.as<int32_t>() + r * rule.top_k;
  float* weights = out.weights.as<float>() + r * rule.top_k;
  if (call.row_slots.data != nullptr && slot == call.skipped_slot) {
    std::fill_n(experts, rule.top_k, -1);
    std::fill_n(weights, rule.top_k, 0.0f);
    return;
  }
  Row row;
  if (call.simulated.positions.data != nullptr) {
    simulated_experts(rule, call.simulated, slot, call.simulated.positions.as<int32_t>()[r], row.experts);
    std::fill_n(row.weights, rule.top_k, rule.scaling / static_cast<float>(rule.top_k));
  } else {
    score(rule, call, call.logits.as<float>() + r * rule.experts, row);
    choose(rule, call, row);
  }
  for (int32_t s = 0; s < rule.top_k; ++s) {
    experts[s] = rule.own_number(row.experts[s]);
    weights[s] = experts[s] < 0 ? 0.0f : row.weights[s];
  }
}

// A counting sort, which leaves entries of one expert in their order.
int32_t group(const Routing& out) {
  const int32_t count = static_cast<int32_t>(out.expert_count());
  const int32_t entries = static_cast<int32_t>(out.entries.shape[0]);
  const int32_t* experts = out.experts.as<int32_t>();
  int32_t* offsets = out.offsets.as<int32_t>();
  std::fill_n(offsets, count + 1, 0);
  for (int32_t i = 0; i < entries; ++i) {
    if (experts[i] >= 0) ++offsets[experts[i] + 1];
  }
  int32_t* touched = out.touched.as<int32_t>();
  int32_t& touched_count = *out.touched_count.as<int32_t>();
  touched_count = 0;
  int32_t next[kMaxExperts];
  for (int32_t e = 0; e < count; ++e) {
    if (offsets[e + 1] > 0) touched[touched_count++] = e;
    next[e] = offsets[e];
    offsets[e + 1] += offsets[e];
  }
  for (int32_t i = 0; i < entries; ++i) {
    if (experts[i] >= 0) out.entries.as<int32_t>()[next[experts[i]]++] = i;
  }
  return touched_count;
}

void route_cpu(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out) {
  if (stream.dry()) return;
  constexpr int64_t kTaskLogits = 4 << 10;  // some microseconds: below that, handing the work out costs too much
  const int64_t rows = out.rows();
  const int64_t tasks = rows == 0 ? 0 : std::clamp(rows * rule.experts / kTaskLogits, int64_t{1}, rows);
  stream.pool().parallel_for(tasks, [&](int64_t t, int) {
    for (int64_t r = rows * t / tasks; r < rows * (t + 1) / tasks; ++r) route_row(rule, call, r, out);
  });
  if (call.zeroed.data != nullptr) std::fill_n(call.zeroed.as<int32_t>(), call.zeroed.count(), 0);
  const int32_t touched = group(out);
  if (call.touched_total != nullptr) *call.touched_total += touched;
}

void group_chosen_cpu(Stream& stream, const ChosenRows& chosen, const ExpertRange& own, const Routing& out,
                      int64_t* touched_total) {
  VOLLEY_CHECK(chosen.counts == nullptr);
  if (stream.dry()) return;
  const int32_t* from = chosen.experts.as<int32_t>();
  int32_t* experts = out.experts.as<int32_t>();
  for (int64_t i = 0; i < chosen.experts.count(); ++i) {
    experts[i] = from[i] >= own.first && from[i] < own.first + own.count ? from[i] - own.zero : -1;
  }
  const int32_t touched = group(out);
  if (touched_total != nullptr) *touched_total += touched;
}

}  // namespace

const RouterKernels RouterKernels::kCpu = {route_cpu, nullptr, group_chosen_cpu};

}  // namespace volley::ops
