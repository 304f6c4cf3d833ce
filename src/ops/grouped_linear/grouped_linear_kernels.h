// The kernels of this folder. Private to it; arguments are checked in grouped_linear.cc.
#pragma once

#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/kernels.h"

namespace volley::ops {

struct GroupedLinearKernels {
  Result<ExpertWeights> (*pack_experts)(Device& device, std::span<const WeightRows> parts, ExpertWeights w);
  void (*grouped_linear)(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                         const GroupedCall& call, const End& end);
  void (*combine_experts)(Stream& stream, const Routing& routing, TensorView d, TensorView y,
                          const ExpertShards& shards);
  // Whether one kernel did both products, and the sum is done, too; if not, nothing was. Null: there is no such kernel.
  bool (*experts_ffn)(Stream& stream, const ExpertsCall& call, const Routing& routing);

  static const GroupedLinearKernels kCpu, kCuda;
};

}  // namespace volley::ops
