#include "model/pass.h"

#include <algorithm>

namespace volley::model {
namespace {

auto find_plan(const std::vector<AttentionPlan>& plans, const ops::HeadShape& shape, int view) {
  return std::ranges::find_if(plans,
                              [&](const AttentionPlan& plan) { return plan.shape == shape && plan.view == view; });
}

}  // namespace

void Pass::plan_attention(const ops::HeadShape& shape, int view) {
  if (find_plan(attention, shape, view) != attention.end()) return;
  attention.push_back({shape, view, ops::plan_attention(stream, rows, rows.views[view], shape, scratch)});
}

const ops::AttentionWork& Pass::attention_work(const ops::HeadShape& shape, int view) const {
  const auto plan = find_plan(attention, shape, view);
  VOLLEY_CHECK(plan != attention.end());
  return plan->work;
}

void Residual::sum(Pass& pass, TensorView partial, bool sent) const {
  if (next == nullptr) return group->add_sum(pass.stream, partial, x);
  group->add_sum_and_norm(pass.stream, partial, x, *next, sent);
}

void Residual::add(Pass& pass, const ops::LinearWeight& w, TensorView a, TensorView bias) const {
  const ops::EndKind how = empty ? ops::EndKind::kStore : ops::EndKind::kAdd;
  if (!is_shared()) return ops::linear(pass.stream, w, a, x, {how, bias}, pass.scratch);
  ArenaScope scope(pass.scratch);
  const TensorView partial = pass.scratch.take(DType::kF32, {x.dim(0), x.dim(1)});
  ops::End end = {ops::EndKind::kStore, once(bias)};
  if (next != nullptr && end.bias.data == nullptr && ops::linear_sends(pass.stream, w, a.dtype, x.dim(0))) {
    end.sent = group->sent_sums(pass.stream, x).value_or(ops::SentSums());
  }
  ops::linear(pass.stream, w, a, partial, end, pass.scratch);
  sum(pass, partial, end.sent.turns != nullptr);
}

}  // namespace volley::model
