// Target families: what a model's folder says, as data. A family is a reader of config.json and the names of its
// tensors; nothing outside this folder knows one by name.
#pragma once

#include <volley/result.h>
#include <volley/sampling.h>

#include <string>
#include <vector>

#include "model/spec.h"
#include "weights/named.h"

namespace volley::families {

struct TargetConfig {
  std::string architecture;  // config.json "architectures"[0]
  model::Decoder decoder;
  int32_t max_positions = 0;     // max_position_embeddings, or what YaRN stretches to if that is more
  std::vector<TokenId> eos_ids;  // generation_config.json's where it has any, else config.json's
  weights::NameRules names;
};

// Reads DIR/config.json (and the end-of-sequence ids of generation_config.json). kUnimplemented names a family,
// activation or scaling that is not built, or a field of config.json that nobody here knows and that may change
// results; kInvalidArgument or kDataLoss name the field that is wrong.
Result<TargetConfig> read_target(const std::string& dir);

}  // namespace volley::families
