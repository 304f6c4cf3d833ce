// The CUDA side of choose(). Private to this folder.
#pragma once

#include "ops/choice/choice.h"

namespace volley::ops::choice {

ChoicePlan plan_choices_cuda(Stream& stream, const ChoiceTask& task, bool summarises, Arena& scratch);
void choose_cuda(Stream& stream, const ChoicePlan& plan, TensorView logits);

int64_t choose_cuda_scratch_bytes(int64_t max_rows, int64_t vocab);

}  // namespace volley::ops::choice
