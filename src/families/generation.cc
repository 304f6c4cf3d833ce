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

namespace {

constexpr const char* kFile = "/generation_config.json";
constexpr std::string_view kDefaults[] = {"do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"};
constexpr const char* kOverrides = "the overrides";

Result<nlohmann::json> read_overrides(const std::string& text) {
  if (text.empty()) return nlohmann::json::object();
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return invalid_argument(R"(it must be a JSON object, such as {"temperature": 0.5})");
  }
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::count(kDefaults, key) > 0) continue;
    std::string list;
    for (const std::string_view name : kDefaults) list += (list.empty() ? "" : ", ") + std::string(name);
    return invalid_argument("\"" + key + "\" is no default that can be set; there are " + list);
  }
  return json;
}

Status read_sampling(const ConfigFields& fields, SamplingParams& sampling) {
  constexpr NumberRange kProbability{.min = 0, .max = 1};
  constexpr NumberRange kPositiveProbability{.min = 0, .max = 1, .min_excluded = true};
  VOLLEY_ASSIGN(const bool do_sample, fields.boolean("do_sample", true));
  VOLLEY_ASSIGN(const double temperature, fields.number("temperature", {.min = 0, .max = 100}, sampling.temperature));
  VOLLEY_ASSIGN(const double top_p, fields.number("top_p", kPositiveProbability, sampling.top_p));
  VOLLEY_ASSIGN(sampling.top_k, fields.integer("top_k", -1, INT32_MAX, sampling.top_k));
  VOLLEY_ASSIGN(const double min_p, fields.number("min_p", kProbability, sampling.min_p));
  VOLLEY_ASSIGN(const double repetition,
                fields.number("repetition_penalty", {.min = 0.01, .max = 100}, sampling.repetition_penalty));
  sampling.temperature = do_sample ? static_cast<float>(temperature) : 0.0f;
  sampling.top_p = static_cast<float>(top_p);
  sampling.min_p = static_cast<float>(min_p);
  sampling.repetition_penalty = static_cast<float>(repetition);
  return {};
}

// The "eos_token" of tokenizer_config.json, or else of special_tokens_map.json: a string, or an object that has it.
// Errors in these files are left to the tokenizer's loader to report.
std::optional<std::string> read_end_token(const std::string& dir) {
  for (const char* file : {"/tokenizer_config.json", "/special_tokens_map.json"}) {
    const Result<nlohmann::json> json = read_json_file(dir + file);
    if (!json.ok()) continue;
    const nlohmann::json token = json->value("eos_token", nlohmann::json());
    const nlohmann::json text = token.is_object() ? token.value("content", nlohmann::json()) : token;
    if (text.is_string() && !text.get_ref<const std::string&>().empty()) return text.get<std::string>();
  }
  return std::nullopt;
}

// Fields of generation_config.json that change no token of an answer: transformers' settings for caching, drafting and
// reporting, and its default number of tokens.
constexpr std::string_view kNoSampling[] = {
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "cache_config",
    "cache_implementation",
    "chat_format",
    "compile_config",
    "disable_compile",
    "early_stopping",  // for beams
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_window_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "return_dict_in_generate",
    "speculation_type",
    "target_lookbehind",
    "token_healing",
    "trust_remote_code",
    "use_mtp",
};

// An absent file is an empty object.
Result<nlohmann::json> read_defaults(const std::string& path, bool needed) {
  Result<nlohmann::json> json = read_json_file(path);
  if (json.ok() || json.error().code != ErrorCode::kNotFound) return json;
  if (needed) return invalid_argument("There is no " + path + ": name a folder that has one, or auto, or none.");
  return nlohmann::json::object();
}

std::string file_of(const std::string& dir, const SamplingSource& source) {
  return (source.config == "auto" ? dir : source.config) + kFile;
}

// The file's fields, with the overrides replacing those of the same name.
Result<nlohmann::json> read_source(const std::string& dir, const SamplingSource& source) {
  VOLLEY_ASSIGN(const nlohmann::json overrides, read_overrides(source.overrides));
  SamplingParams ignored;
  VOLLEY_RETURN_IF_ERROR(read_sampling(ConfigFields(overrides, kOverrides), ignored));
  nlohmann::json json = nlohmann::json::object();
  if (source.config != "none") {
    VOLLEY_ASSIGN(json, read_defaults(file_of(dir, source), source.config != "auto"));
  }
  if (overrides.contains("temperature")) json.erase("do_sample");
  json.update(overrides);
  return json;
}

}  // namespace

Status read_generation_config(const std::string& dir, TargetConfig& target) {
  VOLLEY_ASSIGN(const nlohmann::json json, read_defaults(dir + kFile, false));
  const ConfigFields fields(json, dir + kFile);
  VOLLEY_ASSIGN(std::vector<TokenId> eos_ids, read_eos_ids(fields, target.decoder.vocab));
  if (eos_ids.empty()) {
    target.end_token = read_end_token(dir);
  } else {
    target.eos_ids = std::move(eos_ids);
  }
  for (const std::string_view sampling : kDefaults) fields.has(std::string(sampling).c_str());
  for (const Error& error : fields.unread(kNoSampling)) target.warnings.push_back(error.message);
  return {};
}

Status check_sampling_overrides(const std::string& overrides) {
  VOLLEY_ASSIGN(const nlohmann::json json, read_overrides(overrides));
  SamplingParams ignored;
  return read_sampling(ConfigFields(json, kOverrides), ignored);
}

Result<SamplingParams> read_default_sampling(const std::string& dir, const SamplingSource& source) {
  VOLLEY_ASSIGN(const nlohmann::json json, read_source(dir, source));
  SamplingParams sampling;
  VOLLEY_RETURN_IF_ERROR(read_sampling(ConfigFields(json, file_of(dir, source)), sampling));
  return sampling;
}

bool says_sampling(const std::string& dir, const SamplingSource& source) {
  if (source.config == "none") return true;
  const Result<nlohmann::json> json = read_source(dir, source);
  const auto has = [&json](const char* name) { return json->contains(name) && !(*json)[name].is_null(); };
  return json.ok() && (has("temperature") || has("top_p") || has("top_k") || has("min_p") ||
                       (has("do_sample") && (*json)["do_sample"] == false));
}

}  // namespace volley::families
