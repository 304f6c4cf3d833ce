// Random weights as a quantised checkpoint has them, to measure with.
#pragma once

#include <memory>
#include <string>

#include "weights/checkpoint.h"

namespace volley::weights {

// What make_dummy_checkpoint() made, with the matrices of experts in MXFP4, where that is the method of a
// quantization_config; any other leaves it as it is. Codes are random, scales powers of two that give the products of
// plain random weights' size. The same seed and name give the same.
std::shared_ptr<const Checkpoint> with_dummy_codes(std::shared_ptr<const Checkpoint> dummy, const std::string& method,
                                                   uint64_t seed);

}  // namespace volley::weights
