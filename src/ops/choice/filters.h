// min-p, top-k and top-p: which tokens of a row stay in the draw.
#pragma once

#include "ops/choice/kernels.h"
#include "ops/choice/sampler_state_cpu.h"
#include "ops/choice/slices.h"

namespace volley::ops::choice {

// The cut of the slot's filters for `row` (whose own cut keeps everything).
//   min-p: z >= peak + log(min_p).
//   top-k: the k highest of these, ties to the lower id.
//   top-p: of these the smallest beginning of (value descending, id ascending) whose weight reaches top_p of theirs.
// Tokens further than kWindow below the peak have no weight and cannot win; whether they count as kept is unspecified.
// candidates: scratch, [vocab].
Cut find_cut(const Row& row, const Slot& slot, const Slices& slices, Candidate* candidates);

// The sum of the weights of the row's kept tokens.
double row_weight(const Row& row, const Slices& slices);

}  // namespace volley::ops::choice
