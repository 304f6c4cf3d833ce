// Whether a checkpoint holds what loading a model will ask it for, from its header alone: no weights are read.
#pragma once

#include <volley/result.h>

#include <cstdint>

#include "model/spec.h"
#include "weights/checkpoint.h"

namespace volley::apps {

// The number of tensors that the model needs, all there and of the right shape and a known dtype. Else the error of the
// first that is not, with how many there are.
Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, const model::DecoderSpec& target);
Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, const model::DraftSpec& draft);

}  // namespace volley::apps
