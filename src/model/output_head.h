// Decides which of a checkpoint's tensors is a tied model's output head.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>

#include "model/spec.h"
#include "weights/checkpoint.h"

namespace volley::model {

// A tied model's files may hold an output head beside the embedding. If both are equal the embedding serves as head,
// and the copy takes no memory. A head that differs or is quantised is used, as in transformers 5: then `spec` is no
// longer tied, and the result is a sentence for the user. Reads both tensors. Errors: Checkpoint::get()'s.
Result<std::optional<std::string>> settle_output_head(const weights::Checkpoint& checkpoint, Decoder& spec);

}  // namespace volley::model
