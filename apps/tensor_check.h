// Whether a checkpoint holds what loading a model will ask it for, from its header alone: no weights are read.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "model/spec.h"
#include "model/weight_loader.h"
#include "weights/checkpoint.h"

namespace volley::apps {

using BytesOfType = std::map<DType, int64_t>;

// A matrix that loading makes of one or several of the checkpoint's.
struct NeededMatrix {
  std::vector<DType> parts;
  int64_t values = 0;
};

struct NeededTensors {
  int64_t count = 0;
  BytesOfType bytes;  // in the checkpoint
  std::vector<NeededMatrix> matrices;
};

// The tensors that the model needs, all there and of the right shape and a known dtype. Else the error of the first
// that is not, with how many there are.
Result<NeededTensors> check_tensors(const weights::Checkpoint& checkpoint, const model::DecoderSpec& target);
Result<NeededTensors> check_tensors(const weights::Checkpoint& checkpoint, const model::DraftSpec& draft);

// What these matrices are stored as (model::matrix_storage()), without the padding of a device and scales.
BytesOfType stored_bytes(std::span<const NeededMatrix> matrices, const model::Numerics& numerics);

}  // namespace volley::apps
