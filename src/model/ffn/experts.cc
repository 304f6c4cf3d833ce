// A mixture of gated networks: a router chooses top_k experts a row, and their outputs are added with the router's
// weights, in the order of their scores; then comes the output of the shared expert, if there is one, which every row
// goes through.
//
// With Pass::exchange, replicas share the rows of a layer: each routes its own rows, sends them to the replicas of the
// chosen experts, and gets the experts' outputs back unweighted. Each row's sum is then added on the row's own replica,
// in the order of its scores, so it has the same bits as without other replicas.
#include <algorithm>

#include "model/pass.h"
#include "model/shard.h"
#include "ops/embedding/embedding.h"
#include "ops/grouped_linear/experts.h"
#include "ops/norm/norm.h"
#include "ops/router/route_rows.h"
#include "ops/sigmoid_gate/sigmoid_gate.h"

namespace volley::model {

namespace {

class ExpertsBlock final : public PlacedBlock<Experts> {
 public:
  using PlacedBlock::PlacedBlock;
  static Result<std::unique_ptr<FfnBlock>> load(WeightLoader& loader, const Experts& spec, const BlockSetup& setup);

  const ops::LinearWeight& input_weight() const override { return spec_.own_norms ? shared_gate_up_ : router_; }
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  ops::RouteCall route_call(const Pass& pass) const;
  ops::EndKind activation_end() const;
  ops::Routing take_own_routing(Pass& pass) const;
  // x += experts(h), chosen by `routed`, and, without own norms, the shared expert's output.
  void run_routed(Pass& pass, const ops::Input& routed, const ops::Input& h, const Residual& x) const;
  void run_with_others(Pass& pass, const ops::Input& routed, const ops::Input& h, TensorView x) const;
  void run_own_norms(Pass& pass, const ops::Input& h, const Residual& x) const;
  void add_shared(Pass& pass, const ops::Input& h, const Residual& x) const;

  ops::LinearWeight router_;
  ops::ExpertWeights gate_up_, down_;
  Vector router_bias_, choice_bias_, gate_up_bias_, down_bias_, expert_scale_;  // where there are such
  Vector router_norm_, experts_norm_, shared_end_norm_, experts_end_norm_;      // with own norms
  ops::LinearWeight shared_gate_, shared_gate_up_, shared_down_;                // where there is a shared expert
};

Result<std::unique_ptr<FfnBlock>> ExpertsBlock::load(WeightLoader& loader, const Experts& spec,
                                                     const BlockSetup& setup) {
  VOLLEY_RETURN_IF_ERROR(ops::check_router(spec.router));
  auto block = std::make_unique<ExpertsBlock>(spec, setup);
  VOLLEY_ASSIGN(block->router_, loader.linear(setup.prefix + "router"));
  VOLLEY_ASSIGN(block->gate_up_, loader.experts(setup.prefix + "experts_gate_up"));
  VOLLEY_ASSIGN(block->down_, loader.experts(setup.prefix + "experts_down"));
  for (const auto& [role, vector] : {std::pair<const char*, Vector&>{"router_bias", block->router_bias_},
                                     {"router_choice_bias", block->choice_bias_},
                                     {"experts_gate_up_bias", block->gate_up_bias_},
                                     {"experts_down_bias", block->down_bias_},
                                     {"expert_scale", block->expert_scale_},
                                     {"router_norm", block->router_norm_},
                                     {"experts_norm", block->experts_norm_},
                                     {"shared_end_norm", block->shared_end_norm_},
                                     {"experts_end_norm", block->experts_end_norm_}}) {
    VOLLEY_RETURN_IF_ERROR(loader.optional_vector(setup.prefix + role, vector));
  }
  if (spec.shared_inner > 0) {
    if (spec.shared_gate) {
      VOLLEY_ASSIGN(block->shared_gate_, loader.linear(setup.prefix + "shared_gate"));
    }
    VOLLEY_ASSIGN(block->shared_gate_up_, loader.linear(setup.prefix + "shared_gate_up"));
    VOLLEY_ASSIGN(block->shared_down_, loader.linear(setup.prefix + "shared_down"));
  }
  return std::unique_ptr<FfnBlock>(std::move(block));
}

ops::RouteCall ExpertsBlock::route_call(const Pass& pass) const {
  ops::RouteCall call;
  call.logit_bias = router_bias_.view;
  call.choice_bias = choice_bias_.view;
  call.expert_scale = expert_scale_.view;
  call.row_slots = pass.rows.slots;
  call.skipped_slot = pass.routing.skipped_slot;
  if (pass.routing.simulated) {
    call.simulated = {pass.rows.cache_positions, pass.routing.seed, setup_.layer};
  }
  return call;
}

ops::EndKind ExpertsBlock::activation_end() const {
  if (spec_.clamp.limit > 0) return ops::EndKind::kClampedSwiGlu;
  return spec_.gelu ? ops::EndKind::kGeGlu : ops::EndKind::kSwiGlu;
}

// Exists only for the rows of the pass.
ops::Routing ExpertsBlock::take_own_routing(Pass& pass) const {
  const ops::RouterRule& rule = spec_.router;
  const int64_t rows = pass.rows.rows;
  ops::Routing routing = ops::take_routing(pass.scratch, rule, rows);
  if (pass.routing.chosen.data != nullptr) {
    routing.experts = {pass.routing.chosen.rows(setup_.layer, 1).data, DType::kI32, {rows, rule.top_k}};
  }
  return routing;
}

void ExpertsBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  if (spec_.own_norms) return run_own_norms(pass, h, x);
  if (x.empty) ops::zero(pass.stream, x.x);
  run_routed(pass, h, h, {x.x, x.group, x.next});
}

// x has no values yet, or zeros.
void ExpertsBlock::run_own_norms(Pass& pass, const ops::Input& h, const Residual& x) const {
  ArenaScope scope(pass.scratch);
  const int64_t rows = pass.rows.rows;
  const float eps = setup_.norm_eps;
  const TensorView y = pass.scratch.take(DType::kF32, {rows, down_.n});
  if (rows > 0) {
    if (x.is_shared()) ops::zero(pass.stream, y);
    add_shared(pass, h, {y, x.group, nullptr, {}, !x.is_shared()});
    ops::rms_norm(pass.stream, y, shared_end_norm_.view, eps, {}, {x.x});
  }
  const ops::Input routed = ops::input_for(router_, setup_.numerics.activation, rows, pass.scratch);
  const ops::Input inputs = ops::input_for(router_, setup_.numerics.activation, rows, pass.scratch);
  ops::rms_norm(pass.stream, x.before, router_norm_.view, eps, {}, routed);
  ops::rms_norm(pass.stream, x.before, experts_norm_.view, eps, {}, inputs);
  ops::zero(pass.stream, y);
  run_routed(pass, routed, inputs, {y, x.group});
  ops::add_normed(pass.stream, y, experts_end_norm_.view, eps, 1, x.x);
}

void ExpertsBlock::run_routed(Pass& pass, const ops::Input& routed, const ops::Input& h, const Residual& x) const {
  if (pass.exchange != nullptr) {
    VOLLEY_CHECK(!x.is_shared());
    return run_with_others(pass, routed, h, x.x);
  }
  const ops::RouterRule& rule = spec_.router;
  const int64_t rows = pass.rows.rows, entries = rows * rule.top_k;
  ArenaScope scope(pass.scratch);
  const ops::Routing routing = take_own_routing(pass);
  ops::RouteCall call = route_call(pass);
  call.touched_total = pass.routing.touched_total;
  const bool gain = ops::experts_gain_from_counters(rule, spec_.inner, rows);
  const int64_t counters = gain ? ops::experts_counters(rule, rows) : 0;
  // The addend of one rank of several begins at 0, as do counters.
  const int64_t sums = x.is_shared() ? x.x.count() : 0;
  if (sums + counters > 0) call.zeroed = pass.scratch.take(DType::kI32, {sums + counters});
  const Residual own = x.is_shared() ? Residual{{call.zeroed.data, DType::kF32, {rows, down_.n}}} : x;
  // Logits are computed for simulated routing too: it replaces their values but keeps their cost.
  call.logits = pass.scratch.take(DType::kF32, {rows, rule.experts});
  ops::route_rows(pass.stream, rule, router_, routed, call, routing, pass.scratch);
  const ops::ExpertsCall ffn = {
      .gate_up = gate_up_,
      .down = down_,
      .x = h,
      .inner = pass.scratch.take(setup_.numerics.activation, {entries, spec_.inner}),
      .outer = pass.scratch.take(DType::kF32, {entries, down_.n}),
      .counters = gain ? TensorView(call.zeroed.as<int32_t>() + sums, DType::kI32, {counters}) : TensorView(),
      .y = own.x,
      .gate_up_end = {activation_end(), gate_up_bias_.view, {}, spec_.clamp},
      // Ranks that divide an expert add its bias once among them.
      .down_end = {ops::EndKind::kStore, spec_.by_expert ? down_bias_.view : x.once(down_bias_.view)}};
  ops::experts_ffn(pass.stream, ffn, routing);
  if (spec_.shared_inner > 0 && !spec_.own_norms) add_shared(pass, h, own);
  if (x.is_shared()) x.sum(pass, own.x);
}

// All replicas process the same pieces of their common rows; on GPUs there is one piece. A piece's inputs are written
// between begin() and the end of bring(). Then, until meet(), each entry's product is written by one replica; the row's
// own replica reads it after that. Experts are numbered among those whose weights are here: all experts, in memory that
// replicas share, or this replica's own.
void ExpertsBlock::run_with_others(Pass& pass, const ops::Input& routed, const ops::Input& h, TensorView x) const {
  comm::RowExchange& exchange = *pass.exchange;
  VOLLEY_CHECK(!h.is_codes());  // inputs are sent as they are
  const ops::RouterRule& rule = spec_.router;
  const int64_t rows = pass.rows.rows, top_k = rule.top_k, hidden = down_.n;
  const auto [first_expert, experts] = experts_part(rule.experts, exchange.replica(), exchange.replicas());
  const bool whole = gate_up_.experts == rule.experts;
  VOLLEY_CHECK(whole || gate_up_.experts == experts);
  ops::RouterRule here = rule;
  here.own_count = static_cast<int32_t>(gate_up_.experts);
  ArenaScope scope(pass.scratch), common_scope(exchange.common());
  const ops::Routing own = take_own_routing(pass);
  if (rows > 0) {
    ArenaScope logits_scope(pass.scratch);
    ops::RouteCall call = route_call(pass);
    call.logits = pass.scratch.take(DType::kF32, {rows, rule.experts});
    ops::route_rows(pass.stream, rule, router_, routed, call, own, pass.scratch);
  }
  const comm::RowExchange::Rows there = exchange.begin(pass.stream, rows);
  const int64_t most = there.at_once;
  const TensorView chosen = exchange.common().take(DType::kI32, {most, top_k});
  const TensorView inputs = exchange.common().take(setup_.numerics.activation, {most, hidden});
  const TensorView outer = exchange.common().take(DType::kF32, {most * top_k, hidden});
  for (int64_t at = 0; at < there.all; at += most) {
    const int64_t n = std::min(most, there.all - at);
    // This replica's rows in the piece, and where they lie in it.
    const int64_t begin = std::clamp(at - there.first, int64_t{0}, rows);
    const int64_t count = std::clamp(at + n - there.first, int64_t{0}, rows) - begin;
    const int64_t place = count > 0 ? there.first + begin - at : 0;
    const comm::RowExchange::Copy copies[] = {{own.experts.rows(begin, count), chosen.rows(place, count)},
                                              {h.values.rows(begin, count), inputs.rows(place, count)}};
    exchange.bring(pass.stream, copies);
    {
      ArenaScope piece_scope(pass.scratch);
      ops::Routing routing = ops::take_routing(pass.scratch, here, n);
      routing.likely_entries = there.likely * top_k;
      const TensorView inner = pass.scratch.take(setup_.numerics.activation, {n * top_k, spec_.inner});
      ops::ChosenRows of_all = {chosen.rows(0, n)};
      of_all.counts = exchange.counts();
      if (of_all.counts != nullptr) of_all.parts = exchange.replicas();
      ops::group_chosen(pass.stream, of_all, {first_expert, experts, whole ? 0 : first_expert}, routing,
                        pass.routing.touched_total);
      ops::grouped_linear(pass.stream, gate_up_, inputs.rows(0, n), routing, inner, {.rows = ops::GroupedRows::kIn},
                          {activation_end(), gate_up_bias_.view, {}, spec_.clamp});
      ops::grouped_linear(pass.stream, down_, inner, routing, outer.rows(0, n * top_k),
                          {.rows = ops::GroupedRows::kOut, .routing_ready = true},
                          {ops::EndKind::kStore, down_bias_.view});
    }
    exchange.meet(pass.stream);
    ops::Routing mine;
    mine.experts = own.experts.rows(begin, count);
    mine.weights = own.weights.rows(begin, count);
    ops::combine_experts(pass.stream, mine, outer.rows(place * top_k, count * top_k), x.rows(begin, count),
                         {exchange.shifts(), exchange.replicas(), rule.experts});
  }
  if (spec_.shared_inner > 0 && !spec_.own_norms && rows > 0) add_shared(pass, h, {x});
}

// The gate is one number a row, so it is computed before the second product, which adds to the residual stream.
void ExpertsBlock::add_shared(Pass& pass, const ops::Input& h, const Residual& x) const {
  ArenaScope scope(pass.scratch);
  const int64_t rows = pass.rows.rows;
  const TensorView gate = pass.scratch.take(DType::kF32, {rows, 1});
  const TensorView inner = pass.scratch.take(setup_.numerics.activation, {rows, spec_.shared_inner});
  if (spec_.shared_gate) ops::linear(pass.stream, shared_gate_, h, gate, {}, pass.scratch);
  ops::linear(pass.stream, shared_gate_up_, h, inner, {spec_.gelu ? ops::EndKind::kGeGlu : ops::EndKind::kSwiGlu},
              pass.scratch);
  if (spec_.shared_gate) ops::sigmoid_gate(pass.stream, inner, gate);
  x.add(pass, shared_down_, inner);
}

}  // namespace

template <>
Result<std::unique_ptr<FfnBlock>> load_block(WeightLoader& loader, const Experts& spec, const BlockSetup& setup) {
  return ExpertsBlock::load(loader, spec, setup);
}

}  // namespace volley::model
