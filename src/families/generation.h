// generation_config.json: the sampling that a model's makers recommend.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// "eos_token_id": one id or a list, each once and below `vocab`; empty if there is none.
Result<std::vector<TokenId>> read_eos_ids(const ConfigFields& fields, int32_t vocab);

// The end-of-sequence ids that DIR/generation_config.json names replace those of config.json, as in transformers; where
// it names none, the tokenizer's end token is read. read_default_sampling() reads its sampling fields, because an
// operator may leave them out. Any other request that is not supported becomes a warning.
Status read_generation_config(const std::string& dir, TargetConfig& target);

// Where defaults of sampling parameters come from.
struct SamplingSource {
  std::string config = "auto";  // the model's own generation_config.json; "none": no file; else the folder of one
  std::string overrides = {};   // a JSON object whose fields take precedence over the file's; empty: none
};

// The defaults of requests that name no sampling parameters, for the model in `dir`: the library's own where nothing
// else states one. do_sample false means temperature 0, whatever temperature the file names beside it. A temperature
// among the overrides replaces the file's do_sample. kInvalidArgument: a folder without such a file, or a field that is
// unknown or wrong.
Result<SamplingParams> read_default_sampling(const std::string& dir, const SamplingSource& source);

// Whether file or overrides say which tokens may be drawn, or the operator wants no file. If false, sampling is from
// all tokens at temperature 1 only because nothing was stated; "do_sample": true alone states nothing more. Also false
// if the files cannot be read.
bool says_sampling(const std::string& dir, const SamplingSource& source);

// kInvalidArgument: not a JSON object, or one with an unknown or impossible default.
Status check_sampling_overrides(const std::string& overrides);

}  // namespace volley::families
