// Random weights in the form of a quantised checkpoint, for measurements.
#pragma once

#include <memory>

#include "weights/checkpoint.h"
#include "weights/schemes/schemes.h"

namespace volley::weights {

// Turns the result of make_dummy_checkpoint() into a quantised one: experts in MXFP4, or all projections in FP8 blocks,
// if that is the method of the quantization_config. Another method, or none (null), changes nothing. Codes are random,
// scales powers of two that give the products of plain random weights' size. The same seed and name give the same.
std::shared_ptr<const Checkpoint> with_dummy_codes(std::shared_ptr<const Checkpoint> dummy,
                                                   const Quantisation* quantisation, uint64_t seed);

}  // namespace volley::weights
