// Random weights as a quantised checkpoint has them, to measure with.
#pragma once

#include <memory>

#include "weights/checkpoint.h"
#include "weights/schemes/schemes.h"

namespace volley::weights {

// What make_dummy_checkpoint() made, with the matrices of experts in MXFP4, or all projections in FP8 in blocks, where
// that is the method of a quantization_config; any other, or none (null), leaves it as it is. Codes are random, scales
// powers of two that give the products of plain random weights' size. The same seed and name give the same.
std::shared_ptr<const Checkpoint> with_dummy_codes(std::shared_ptr<const Checkpoint> dummy,
                                                   const Quantisation* quantisation, uint64_t seed);

}  // namespace volley::weights
