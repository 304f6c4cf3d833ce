#include "model/pass.h"

namespace volley::model {

void Residual::sum(Pass& pass, TensorView partial, bool sent) const {
  if (next == nullptr) return group->add_sum(pass.stream, partial, x);
  group->add_sum_and_norm(pass.stream, partial, x, *next, sent);
}

void Residual::add(Pass& pass, const ops::LinearWeight& w, TensorView a, TensorView bias) const {
  if (!is_shared()) return ops::linear(pass.stream, w, a, x, {ops::EndKind::kAdd, bias}, pass.scratch);
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
