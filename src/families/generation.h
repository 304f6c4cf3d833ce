// generation_config.json: how a model's makers want it to be sampled.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// "eos_token_id": one id or a list, each once and below `vocab`; empty if there is none.
Result<std::vector<TokenId>> read_eos_ids(const ConfigFields& fields, int32_t vocab);

// The end-of-sequence ids that DIR/generation_config.json names replace those of config.json, as in transformers. What
// it says of sampling is read_default_sampling()'s to judge: an operator may leave it out.
Status read_generation_config(const std::string& dir, TargetConfig& target);

// Where defaults of sampling parameters come from.
struct SamplingSource {
  std::string config = "auto";  // the model's own generation_config.json; "none": no file; else the folder of one
  std::string overrides = {};   // a JSON object whose fields count before the file's; empty: none
};

// What requests that name no sampling parameters get from the model in `dir`: the library's defaults where nothing else
// says it. do_sample false means temperature 0, whatever temperature the file names beside it. A temperature among the
// overrides ends a do_sample of the file. kInvalidArgument: a folder without such a file, or a field that is unknown or
// wrong.
Result<SamplingParams> read_default_sampling(const std::string& dir, const SamplingSource& source);

// kInvalidArgument: no JSON object, or one that has no such default or an impossible value.
Status check_sampling_overrides(const std::string& overrides);

}  // namespace volley::families
