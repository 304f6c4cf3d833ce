// The feed-forward network of a mixture behind its router, as one operation:
//   h = silu(x G_e^T) * (x U_e^T),  d = h D_e^T,  y += sum over slots of weight * d,
// with the biases and the activation of the products' ends.
//
// The bits are those of grouped_linear() for gate and up, grouped_linear() for down and combine_experts(), one after
// the other, and so is batch invariance. On sm_90a, with a mean of up to 32 entries an expert, one kernel does both
// products, so that reading weights does not stop between them.
#pragma once

#include "ops/grouped_linear/grouped_linear.h"

namespace volley::ops {

struct ExpertsCall {
  const ExpertWeights& gate_up;  // kGateUp, [2 * inner, hidden]
  const ExpertWeights& down;     // kPlain, [hidden, inner]
  Input x;                       // [rows, hidden]
  TensorView inner;              // scratch: [rows * top_k, inner], bf16 or fp32: what h is rounded to
  TensorView outer;              // scratch: [rows * top_k, hidden], bf16 or fp32: what d is rounded to
  // [experts_counters()] int32, all 0 (RouteCall::zeroed); the call consumes them. A null view: one kernel for each
  // product.
  TensorView counters;
  TensorView y;  // [rows, hidden] fp32, the residual stream
  // As grouped_linear() has them.
  End gate_up_end = {EndKind::kSwiGlu};
  End down_end = {};
};

// x, weights and intermediate types as for grouped_linear(). y overlaps no other tensor. rows may be 0.
void experts_ffn(Stream& stream, const ExpertsCall& call, const Routing& routing);

// How many counters a call for so many rows takes; 0 if one kernel cannot do it.
int64_t experts_counters(const RouterRule& rule, int64_t rows);
// Whether that kernel is faster for so many rows than one for each product, for experts [2 * inner, hidden].
bool experts_gain_from_counters(const RouterRule& rule, int64_t inner, int64_t rows);

}  // namespace volley::ops
