// The statements of a configuration about quantised weights: "quantization_config" of a config.json, or
// hf_quant_config.json.
#pragma once

#include "families/fields.h"
#include "weights/schemes/schemes.h"

namespace volley::families {

// Null where the files state none. dir: where hf_quant_config.json may be. kUnimplemented for a method, a format or a
// field that is unknown and may change results; kInvalidArgument for a field that is wrong.
Result<std::shared_ptr<const weights::Quantisation>> read_quantisation(const ConfigFields& config,
                                                                       const std::string& dir);

}  // namespace volley::families
