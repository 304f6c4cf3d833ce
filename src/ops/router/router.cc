#include "ops/router/router.h"

#include <string>

#include "ops/router/router_kernels.h"

namespace volley::ops {
namespace {

constexpr int32_t kMaxGroups = 32;

Status check_groups(const RouterRule& rule) {
  if (rule.groups == 1 && rule.top_groups == 1) return {};
  const std::string groups = std::to_string(rule.groups), top = std::to_string(rule.top_groups);
  if (rule.score != RouterScore::kSigmoid || rule.groups > kMaxGroups) {
    return unimplemented("A router with " + groups +
                         " groups of experts is not built: groups are for sigmoid scores, at most " +
                         std::to_string(kMaxGroups) + ".");
  }
  if (rule.groups < 1 || rule.experts % rule.groups != 0 || rule.experts / rule.groups < 2) {
    return invalid_argument(std::to_string(rule.experts) + " experts cannot be cut into " + groups +
                            " groups of equal size of at least two.");
  }
  if (rule.top_groups < 1 || rule.top_groups > rule.groups ||
      rule.experts / rule.groups * rule.top_groups < rule.top_k) {
    return invalid_argument("A router that keeps " + top + " of " + groups + " groups cannot choose " +
                            std::to_string(rule.top_k) + " of " + std::to_string(rule.experts) + " experts.");
  }
  return {};
}

bool is_rows(const TensorView& view, DType dtype, int64_t count) {
  return view.rank == 1 && view.dtype == dtype && view.shape[0] == count;
}

}  // namespace

Status check_router(const RouterRule& rule) {
  const std::string experts = std::to_string(rule.experts), top = std::to_string(rule.top_k);
  if (rule.experts < 1 || rule.top_k < 1 || rule.top_k > rule.experts) {
    return invalid_argument("A router cannot choose " + top + " of " + experts + " experts.");
  }
  if (rule.experts > kMaxExperts || rule.top_k > kMaxExpertsPerRow) {
    return unimplemented("A router that chooses " + top + " of " + experts + " experts is not built: at most " +
                         std::to_string(kMaxExpertsPerRow) + " of " + std::to_string(kMaxExperts) + ".");
  }
  return check_groups(rule);
}

Routing take_routing(Arena& scratch, const RouterRule& rule, int64_t rows) {
  Routing r;
  r.experts = scratch.take(DType::kI32, {rows, rule.top_k});
  r.weights = scratch.take(DType::kF32, {rows, rule.top_k});
  r.entries = scratch.take(DType::kI32, {rows * rule.top_k});
  r.offsets = scratch.take(DType::kI32, {rule.own() + 1});
  r.touched = scratch.take(DType::kI32, {rule.own()});
  r.touched_count = scratch.take(DType::kI32, {1});
  r.spread = rule.experts;
  return r;
}

void route(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out) {
  VOLLEY_CHECK(check_router(rule).ok());
  const int64_t rows = out.rows();
  VOLLEY_CHECK_EQ(out.top_k(), rule.top_k);
  VOLLEY_CHECK_EQ(out.expert_count(), rule.own());
  VOLLEY_CHECK(rule.own_first >= 0 && rule.own_first + rule.own() <= rule.experts);
  VOLLEY_CHECK_EQ(out.entries.shape[0], rows * rule.top_k);
  const bool simulated = call.simulated.positions.data != nullptr;
  if (simulated) {
    VOLLEY_CHECK(is_rows(call.simulated.positions, DType::kI32, rows));
  } else {
    VOLLEY_CHECK(call.logits.rank == 2 && call.logits.dtype == DType::kF32);
    VOLLEY_CHECK(call.logits.shape[0] == rows && call.logits.shape[1] == rule.experts);
  }
  VOLLEY_CHECK(call.row_slots.data == nullptr || is_rows(call.row_slots, DType::kI32, rows));
  for (const TensorView& of_experts : {call.logit_bias, call.expert_scale}) {
    VOLLEY_CHECK(of_experts.data == nullptr || is_rows(of_experts, DType::kF32, rule.experts));
  }
  VOLLEY_CHECK(call.choice_bias.data == nullptr ||
               (rule.score == RouterScore::kSigmoid && is_rows(call.choice_bias, DType::kF32, rule.experts)));
  VOLLEY_CHECK(call.zeroed.data == nullptr || call.zeroed.dtype == DType::kI32);
  kernels_on<RouterKernels>(stream).route(stream, rule, call, out);
}

void group_chosen(Stream& stream, const ChosenRows& chosen, const ExpertRange& own, const Routing& out,
                  int64_t* touched_total) {
  VOLLEY_CHECK(chosen.experts.dtype == DType::kI32 && chosen.experts.rank == 2);
  VOLLEY_CHECK(chosen.experts.shape[0] == out.rows() && chosen.experts.shape[1] == out.top_k());
  VOLLEY_CHECK(own.zero >= 0 && own.count >= 0 && own.first >= own.zero);
  VOLLEY_CHECK_LE(own.first + own.count - own.zero, out.expert_count());
  VOLLEY_CHECK_EQ(out.entries.shape[0], out.rows() * out.top_k());
  VOLLEY_CHECK(chosen.parts >= 1 && chosen.parts <= kMostRowParts && out.rows() % chosen.parts == 0);
  kernels_on<RouterKernels>(stream).group_chosen(stream, chosen, own, out, touched_total);
}

}  // namespace volley::ops
