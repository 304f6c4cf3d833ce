#include "model/ffn/experts.h"

#include "ops/grouped_linear/experts.h"
#include "ops/router/route_rows.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace volley::model {

Result<std::unique_ptr<FfnBlock>> ExpertsBlock::load(WeightLoader& loader, const std::string& prefix,
                                                     const Setup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_router(setup.spec.router));
  auto block = std::make_unique<ExpertsBlock>();
  block->setup_ = setup;
  VOLLEY_ASSIGN(block->router_, loader.linear(prefix + "router"));
  VOLLEY_ASSIGN(block->gate_up_, loader.experts(prefix + "experts_gate_up"));
  VOLLEY_ASSIGN(block->down_, loader.experts(prefix + "experts_down"));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "router_bias", block->router_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "experts_gate_up_bias", block->gate_up_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector(prefix + "experts_down_bias", block->down_bias_));
  if (setup.spec.shared_inner > 0) {
    VOLLEY_ASSIGN(block->shared_gate_, loader.linear(prefix + "shared_gate"));
    VOLLEY_ASSIGN(block->shared_gate_up_, loader.linear(prefix + "shared_gate_up"));
    VOLLEY_ASSIGN(block->shared_down_, loader.linear(prefix + "shared_down"));
  }
  return std::unique_ptr<FfnBlock>(std::move(block));
}

void ExpertsBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::RouterRule& rule = setup_.spec.router;
  const int64_t rows = pass.rows.rows, entries = rows * rule.top_k;
  ArenaScope scope(pass.scratch);
  ops::Routing routing = ops::take_routing(pass.scratch, rule, rows);
  if (pass.routing.chosen.data != nullptr) {
    routing.experts = {pass.routing.chosen.rows(setup_.layer, 1).data, DType::kI32, {rows, rule.top_k}};
  }
  ops::RouteCall call;
  call.logit_bias = router_bias_.view;
  call.row_slots = pass.rows.slots;
  call.skipped_slot = pass.routing.skipped_slot;
  call.touched_total = pass.routing.touched_total;
  if (pass.routing.simulated) {
    call.simulated = {pass.rows.cache_positions, pass.routing.seed, setup_.layer};
  }
  const bool gain = ops::experts_gain_from_counters(rule, setup_.spec.inner, rows);
  const int64_t counters = gain ? ops::experts_counters(rule, rows) : 0;
  // What a rank of several adds begins at 0, as counters do.
  const int64_t sums = x.group != nullptr ? x.x.count() : 0;
  if (sums + counters > 0) call.zeroed = pass.scratch.take(DType::kI32, {sums + counters});
  const Residual own = x.group != nullptr ? Residual{{call.zeroed.data, DType::kF32, {rows, down_.n}}} : x;
  // Logits are made for simulated routing, too: it takes the place of their values, not of their cost.
  call.logits = pass.scratch.take(DType::kF32, {rows, rule.experts});
  ops::route_rows(pass.stream, rule, router_, h, call, routing, pass.scratch);
  const ops::EndKind activation = setup_.spec.clamp.limit > 0 ? ops::EndKind::kClampedSwiGlu : ops::EndKind::kSwiGlu;
  const ops::ExpertsCall ffn = {
      .gate_up = gate_up_,
      .down = down_,
      .x = h,
      .inner = pass.scratch.take(setup_.activation, {entries, setup_.spec.inner}),
      .outer = pass.scratch.take(DType::kF32, {entries, down_.n}),
      .counters = gain ? TensorView(call.zeroed.as<int32_t>() + sums, DType::kI32, {counters}) : TensorView(),
      .y = own.x,
      .gate_up_end = {activation, gate_up_bias_.view, {}, setup_.spec.clamp},
      // Parts of an expert have one bias together.
      .down_end = {ops::EndKind::kStore, setup_.spec.by_expert ? down_bias_.view : x.once(down_bias_.view)}};
  ops::experts_ffn(pass.stream, ffn, routing);
  if (setup_.spec.shared_inner > 0) add_shared(pass, h, own);
  if (x.group != nullptr) x.group->add_sum(pass.stream, own.x, x.x);
}

// The gate is a number a row, so it can be taken before the second product, which adds to the residual stream.
void ExpertsBlock::add_shared(Pass& pass, const ops::Input& h, const Residual& x) const {
  ArenaScope scope(pass.scratch);
  const int64_t rows = pass.rows.rows;
  const TensorView gate = pass.scratch.take(DType::kF32, {rows, 1});
  const TensorView inner = pass.scratch.take(setup_.activation, {rows, setup_.spec.shared_inner});
  ops::linear(pass.stream, shared_gate_, h, gate, {}, pass.scratch);
  ops::linear(pass.stream, shared_gate_up_, h, inner, {ops::EndKind::kSwiGlu}, pass.scratch);
  ops::sigmoid_gate(pass.stream, inner, gate);
  x.add(pass, shared_down_, inner);
}

}  // namespace volley::model
