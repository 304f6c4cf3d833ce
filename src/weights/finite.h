// Checks of weights: finite, or all zero.
#pragma once

#include "weights/checkpoint.h"

namespace volley::weights {

// Whether no element is infinite or NaN. Reads the whole tensor, as fast as memory is.
bool all_finite(const SourceTensor& tensor);

// Whether every element is zero, of either sign.
bool all_zero(const SourceTensor& tensor);

}  // namespace volley::weights
