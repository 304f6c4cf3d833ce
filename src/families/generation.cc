#include "families/generation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace volley::families {

Result<std::vector<TokenId>> read_eos_ids(const ConfigFields& fields, int32_t vocab) {
  constexpr const char* kKey = "eos_token_id";
  std::vector<TokenId> ids;
  if (!fields.has(kKey)) return ids;
  if (!fields.json()[kKey].is_array()) {
    VOLLEY_ASSIGN(const TokenId id, fields.integer(kKey, 0, vocab - 1));
    return std::vector<TokenId>{id};
  }
  VOLLEY_ASSIGN(const std::vector<TokenId> listed, fields.integers(kKey, 0, vocab - 1));
  for (const TokenId id : listed) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

Status read_generation_config(const std::string& dir, TargetConfig& target) {
  const std::string path = dir + "/generation_config.json";
  const Result<nlohmann::json> json = read_json_file(path);
  if (!json.ok()) return json.error().code == ErrorCode::kNotFound ? Status() : Status(json.error());
  const ConfigFields fields(*json, path);
  VOLLEY_ASSIGN(std::vector<TokenId> eos_ids, read_eos_ids(fields, target.decoder.vocab));
  if (!eos_ids.empty()) target.eos_ids = std::move(eos_ids);

  constexpr NumberRange kProbability{.min = 0, .max = 1};
  constexpr NumberRange kPositiveProbability{.min = 0, .max = 1, .min_excluded = true};
  SamplingParams& sampling = target.default_sampling;
  VOLLEY_ASSIGN(const bool do_sample, fields.boolean("do_sample", true));
  VOLLEY_ASSIGN(const double temperature, fields.number("temperature", {.min = 0, .max = 1e6}, sampling.temperature));
  VOLLEY_ASSIGN(const double top_p, fields.number("top_p", kPositiveProbability, sampling.top_p));
  VOLLEY_ASSIGN(sampling.top_k, fields.integer("top_k", -1, INT32_MAX, sampling.top_k));
  VOLLEY_ASSIGN(const double min_p, fields.number("min_p", kProbability, sampling.min_p));
  VOLLEY_ASSIGN(
      const double repetition,
      fields.number("repetition_penalty", {.min = 0, .max = 1e6, .min_excluded = true}, sampling.repetition_penalty));
  sampling.temperature = do_sample ? static_cast<float>(temperature) : 0.0f;
  sampling.top_p = static_cast<float>(top_p);
  sampling.min_p = static_cast<float>(min_p);
  sampling.repetition_penalty = static_cast<float>(repetition);
  return {};
}

}  // namespace volley::families
