// Target families: what a model's folder says, as data. A family is a reader of config.json and the names of its
// tensors; no code outside this folder refers to a family by name.
#pragma once

#include <volley/result.h>
#include <volley/sampling.h>

#include <optional>
#include <string>
#include <vector>

#include "model/spec.h"
#include "weights/named.h"

namespace volley::families {

struct TargetConfig {
  std::string architecture;  // config.json "architectures"[0]
  model::Decoder decoder;
  int32_t max_positions = 0;     // max_position_embeddings, or YaRN's stretched length if that is more
  std::vector<TokenId> eos_ids;  // generation_config.json's where it has any, else config.json's
  // The tokenizer's end-of-sequence token as its vocabulary spells it. This token also ends answers where
  // generation_config.json names no ids.
  std::optional<std::string> end_token = {};
  weights::NameRules names;
  // Why Decoder::tower is missing from a model that sees; empty where the file speaks of text alone.
  std::string no_pictures = {};
  std::vector<std::string> warnings = {};  // for people: unsupported requests of generation_config.json
};

// Reads DIR/config.json (and the end-of-sequence ids of generation_config.json). kUnimplemented names a family,
// activation or scaling that is not built, or an unknown field of config.json that may change results; kInvalidArgument
// or kDataLoss name the field that is wrong.
Result<TargetConfig> read_target(const std::string& dir);

}  // namespace volley::families
