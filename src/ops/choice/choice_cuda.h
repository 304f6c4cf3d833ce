// The CUDA side of choose(). Private to this folder.
#pragma once

#include "ops/choice/choice.h"

namespace volley::ops::choice {

void choose_cuda(Stream& stream, TensorView logits, std::span<const ChoiceSegment> segments, const SamplerState& state,
                 const ChoiceOutput& out, Arena& scratch);

int64_t choose_cuda_scratch_bytes(int64_t max_rows, int64_t vocab);

}  // namespace volley::ops::choice
