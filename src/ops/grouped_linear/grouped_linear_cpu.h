// The CPU kernels of this folder. Private to it.
//
// Packed: for each expert the panels of a matrix as ops/linear packs it. The order of an expert's sums is linear()'s.
#pragma once

#include "ops/grouped_linear/grouped_linear.h"

namespace volley::ops {

Result<ExpertWeights> pack_experts_cpu(Device& device, std::span<const WeightRows> parts, ExpertWeights w);
void grouped_linear_cpu(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                        const GroupedCall& call);
void combine_experts_cpu(Stream& stream, const Routing& routing, TensorView d, TensorView y);

}  // namespace volley::ops
