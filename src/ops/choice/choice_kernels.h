// The two sides of choice.h. Private to this folder; arguments are checked in choice.cc.
#pragma once

#include "ops/choice/choice.h"
#include "ops/kernels.h"

namespace volley::ops::choice {

struct ChoiceKernels {
  // As the public functions, for at least one row and segment. On the CPU there is nothing to plan.
  ChoicePlan (*plan_choices)(Stream& stream, const ChoiceTask& task, bool summarises, Arena& scratch);
  void (*choose)(Stream& stream, const ChoicePlan& plan, TensorView logits, Arena& scratch);
  Result<std::unique_ptr<SamplerState>> (*create_state)(Device& device, int32_t slots, int32_t vocab);

  static const ChoiceKernels kCpu, kCuda;
};

}  // namespace volley::ops::choice
