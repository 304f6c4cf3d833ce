#include "model/ffn/experts.h"

namespace volley::model {

Result<std::unique_ptr<FfnBlock>> ExpertsBlock::load(WeightLoader& loader, const std::string& prefix,
                                                     const Setup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_router(setup.spec.router));
  auto block = std::make_unique<ExpertsBlock>();
  block->setup_ = setup;
  VOLLEY_ASSIGN(block->router_, loader.linear(prefix + "router"));
  VOLLEY_ASSIGN(block->gate_up_, loader.experts(prefix + "experts_gate_up"));
  VOLLEY_ASSIGN(block->down_, loader.experts(prefix + "experts_down"));
  return std::unique_ptr<FfnBlock>(std::move(block));
}

void ExpertsBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const ops::RouterRule& rule = setup_.spec.router;
  const int64_t rows = pass.rows.rows, entries = rows * rule.top_k;
  ArenaScope scope(pass.scratch);
  const ops::Routing routing = ops::take_routing(pass.scratch, rule, rows);
  ops::RouteCall call;
  call.row_slots = pass.rows.slots;
  call.skipped_slot = pass.routing.skipped_slot;
  call.touched_total = pass.routing.touched_total;
  if (pass.routing.simulated) {
    call.simulated = {pass.rows.cache_positions, pass.routing.seed, setup_.layer};
  }
  // Logits are made for simulated routing, too: it takes the place of their values, not of their cost.
  call.logits = pass.scratch.take(DType::kF32, {rows, rule.experts});
  ops::linear(pass.stream, router_, h, call.logits, {}, pass.scratch);
  ops::route(pass.stream, rule, call, routing);
  const TensorView inner = pass.scratch.take(setup_.activation, {entries, setup_.spec.inner});
  ops::grouped_linear(pass.stream, gate_up_, h, routing, inner, {ops::GroupedRows::kIn}, {ops::EndKind::kSwiGlu});
  const TensorView outer = pass.scratch.take(DType::kF32, {entries, down_.n});
  ops::grouped_linear(pass.stream, down_, inner, routing, outer, {ops::GroupedRows::kOut, true}, {});
  ops::combine_experts(pass.stream, routing, outer, x.x);
}

int64_t ExpertsBlock::scratch_bytes(const Experts& spec, int32_t hidden, int64_t rows) {
  const int64_t entries = rows * spec.router.top_k;
  return ops::routing_bytes(spec.router, rows) +
         (rows * spec.router.experts + entries * spec.inner + entries * hidden) * 4 + 3 * kArenaAlignment;
}

}  // namespace volley::model
