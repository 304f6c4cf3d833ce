// Whether weights are numbers.
#pragma once

#include "weights/checkpoint.h"

namespace volley::weights {

// Whether no element is infinite or NaN. Reads the whole tensor, as fast as memory is.
bool all_finite(const SourceTensor& tensor);

}  // namespace volley::weights
