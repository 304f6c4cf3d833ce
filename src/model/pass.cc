#include "model/pass.h"

#include <bit>

#include "ops/add/add.h"

namespace volley::model {

PartSums::PartSums(int parts, int64_t rows, int64_t hidden, Arena& scratch) : parts_(parts) {
  VOLLEY_CHECK(parts > 1 && std::has_single_bit(static_cast<unsigned>(parts)));
  for (int n = 1; n < parts; n *= 2) waiting_.push_back(scratch.take(DType::kF32, {rows, hidden}));
}

// Which sums wait is the binary form of how many parts are done; one more carries.
std::optional<TensorView> PartSums::add(Stream& stream, TensorView partial) {
  const auto part = static_cast<unsigned>(done_);
  int waiting = std::popcount(part);
  for (int i = std::countr_one(part); i > 0; --i) {
    --waiting;
    ops::add(stream, partial, waiting_[waiting]);
    partial = waiting_[waiting];
  }
  done_ = (done_ + 1) % parts_;
  if (done_ == 0) return partial;
  if (part % 2 == 0) ops::copy(stream, partial, waiting_[waiting]);
  return std::nullopt;
}

void Residual::sum(Pass& pass, TensorView partial, bool sent) const {
  if (parts != nullptr) {
    const std::optional<TensorView> all = parts->add(pass.stream, partial);
    if (!all) return;
    partial = *all;
  }
  if (group == nullptr) return ops::add(pass.stream, partial, x);
  if (next == nullptr) return group->add_sum(pass.stream, partial, x);
  group->add_sum_and_norm(pass.stream, partial, x, *next, sent);
}

void Residual::add(Pass& pass, const ops::LinearWeight& w, TensorView a, TensorView bias) const {
  if (!in_parts()) return ops::linear(pass.stream, w, a, x, {ops::EndKind::kAdd, bias}, pass.scratch);
  ArenaScope scope(pass.scratch);
  const TensorView partial = pass.scratch.take(DType::kF32, {x.dim(0), x.dim(1)});
  ops::End end = {ops::EndKind::kStore, once(bias)};
  if (parts == nullptr && next != nullptr && end.bias.data == nullptr &&
      ops::linear_sends(pass.stream, w, a.dtype, x.dim(0))) {
    end.sent = group->sent_sums(pass.stream, x).value_or(ops::SentSums());
  }
  ops::linear(pass.stream, w, a, partial, end, pass.scratch);
  sum(pass, partial, end.sent.turns != nullptr);
}

}  // namespace volley::model
