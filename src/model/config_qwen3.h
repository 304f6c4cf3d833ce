// The fields that a dense Qwen3 decoder and a DFlash drafter, which is built like one, have in common.
#pragma once

#include "model/config_fields.h"
#include "model/spec.h"

namespace volley::model {

// Everything but eos_ids and default_sampling. Every layer is full and causal: what else layer_types may ask for
// differs between target and drafter, and is the caller's to read or to refuse.
Result<DecoderSpec> read_qwen3_decoder(const ConfigFields& config, const std::string& architecture);

// "layer_types": one a layer, or an empty list if the file has none.
Result<std::vector<std::string>> read_layer_types(const ConfigFields& config, size_t layers);

}  // namespace volley::model
