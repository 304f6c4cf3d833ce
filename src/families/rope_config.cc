#include "families/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace volley::families {
namespace {

constexpr NumberRange kPositive{.min = 0, .max = 1e12, .min_excluded = true};
constexpr NumberRange kTheta{.min = 1, .max = 1e18, .min_excluded = true};

// The dictionary that describes the scaling; no value if there is none.
Result<std::optional<ConfigFields>> scaling_fields(const ConfigFields& config) {
  VOLLEY_ASSIGN(std::optional<ConfigFields> scaling, config.object("rope_scaling"));
  VOLLEY_ASSIGN(std::optional<ConfigFields> parameters, config.object("rope_parameters"));
  if (!scaling) return parameters;
  // transformers 5 lets rope_scaling replace rope_parameters as a whole, rope_theta included: hardly what was meant.
  if (parameters && parameters->json() != scaling->json()) {
    return config.wrong("rope_scaling", "contradicts \"rope_parameters\": put all of it into one of the two");
  }
  if (parameters) parameters->take_all();
  return scaling;
}

// The part of a head that is rotated, where this object says it.
Status read_partial(const ConfigFields& fields, std::optional<double>& partial) {
  VOLLEY_ASSIGN(const double stated, fields.number("partial_rotary_factor", kPositive, partial.value_or(1.0)));
  if (!partial && stated != 1.0) return fields.unbuilt("partial_rotary_factor", "other than 1 is not built");
  if (partial) partial = stated;
  return {};
}

Status read_rotated(const ConfigFields& config, double partial, int32_t head_dim, model::RopeSpec& rope) {
  const double rotated = std::floor(head_dim * partial);
  if (rotated < 2 || rotated > head_dim || static_cast<int32_t>(rotated) % 2 != 0) {
    return config.wrong("partial_rotary_factor", "makes " + std::to_string(static_cast<int64_t>(rotated)) + " of the " +
                                                     std::to_string(head_dim) +
                                                     " elements of a head turn, which must be an even number of them");
  }
  if (rotated < head_dim) rope.rotated = static_cast<int32_t>(rotated);
  return {};
}

Status refuse_other_rotations(const ConfigFields& fields, bool multimodal) {
  const bool sections = fields.has("mrope_section");
  if (multimodal) {
    if (sections) VOLLEY_RETURN_IF_ERROR(fields.integers("mrope_section", 0, INT32_MAX));
    VOLLEY_RETURN_IF_ERROR(fields.boolean("mrope_interleaved", false));
  } else if (sections) {
    return fields.unbuilt("mrope_section", "(multimodal RoPE) is not built");
  }
  for (const auto& [key, value] : fields.json().items()) {
    if (value.is_object()) return fields.unbuilt(key, "is a rotary embedding for some layers only, which is not built");
  }
  return {};
}

Status read_llama3(const ConfigFields& fields, model::RopeSpec& rope) {
  rope.scaling = model::RopeSpec::Scaling::kLlama3;
  VOLLEY_ASSIGN(rope.factor, fields.number("factor", kPositive));
  VOLLEY_ASSIGN(rope.low_freq_factor, fields.number("low_freq_factor", kPositive));
  VOLLEY_ASSIGN(rope.high_freq_factor, fields.number("high_freq_factor", kPositive));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return fields.wrong("high_freq_factor", "must be above \"low_freq_factor\"");
  }
  return {};
}

// "attn_factor" multiplies what YaRN computes: DeepSeek-R1-0528-Qwen3-8B states it so that the product is 1, as vLLM
// read it when that came out. transformers ignores it.
Status read_attn_factor(const ConfigFields& fields, model::RopeSpec& rope) {
  if (!fields.has("attn_factor")) return {};
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim"}) {
    if (fields.has(other))
      return fields.wrong("attn_factor", "stands beside \"" + std::string(other) + "\": remove one");
  }
  VOLLEY_ASSIGN(const double times, fields.number("attn_factor", {.min = 0, .max = 1e6, .min_excluded = true}));
  rope.attention_factor = times * (rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0);
  return {};
}

Status read_yarn(const ConfigFields& fields, int32_t max_positions, model::RopeSpec& rope) {
  rope.scaling = model::RopeSpec::Scaling::kYarn;
  VOLLEY_ASSIGN(rope.factor, fields.number("factor", kPositive, max_positions / rope.original_max_position));
  VOLLEY_ASSIGN(rope.beta_fast, fields.number("beta_fast", kPositive, rope.beta_fast));
  VOLLEY_ASSIGN(rope.beta_slow, fields.number("beta_slow", kPositive, rope.beta_slow));
  if (rope.beta_fast < rope.beta_slow) return fields.wrong("beta_fast", "must not be below \"beta_slow\"");
  const auto optional_number = [&](const char* key, std::optional<double>& out) -> Status {
    if (!fields.has(key)) return {};
    VOLLEY_ASSIGN(out, fields.number(key, {.min = 0, .max = 1e6}));
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(optional_number("attention_factor", rope.attention_factor));
  VOLLEY_RETURN_IF_ERROR(optional_number("mscale", rope.mscale));
  VOLLEY_RETURN_IF_ERROR(optional_number("mscale_all_dim", rope.mscale_all_dim));
  VOLLEY_RETURN_IF_ERROR(read_attn_factor(fields, rope));
  VOLLEY_ASSIGN(rope.truncate, fields.boolean("truncate", true));
  return {};
}

Result<std::string> scaling_type(const ConfigFields& fields) {
  const bool both = fields.has("type") && fields.has("rope_type");  // a writer of old and new files
  if (both && fields.json()["type"] != fields.json()["rope_type"]) {
    return fields.wrong("type", "contradicts \"rope_type\": remove one of the two");
  }
  const char* key = fields.has("rope_type") ? "rope_type" : "type";
  VOLLEY_ASSIGN(std::string type, fields.text(key, "default"));
  if (!fields.has(key) && fields.has("factor")) return fields.wrong("rope_type", "is missing beside \"factor\"");
  return type;
}

}  // namespace

Result<model::RopeSpec> read_rope(const ConfigFields& config, int32_t head_dim, std::optional<double> partial,
                                  int32_t& max_positions) {
  const bool multimodal = partial.has_value();
  model::RopeSpec rope;
  rope.dim = head_dim;
  VOLLEY_ASSIGN(rope.theta, config.number("rope_theta", kTheta, rope.theta));
  VOLLEY_RETURN_IF_ERROR(read_partial(config, partial));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> scaling, scaling_fields(config));
  if (scaling) VOLLEY_RETURN_IF_ERROR(read_partial(*scaling, partial));
  if (partial) VOLLEY_RETURN_IF_ERROR(read_rotated(config, *partial, head_dim, rope));
  if (!scaling) return rope;
  const ConfigFields& fields = *scaling;

  VOLLEY_RETURN_IF_ERROR(refuse_other_rotations(fields, multimodal));
  VOLLEY_ASSIGN(rope.theta, fields.number("rope_theta", kTheta, rope.theta));
  VOLLEY_ASSIGN(const std::string type, scaling_type(fields));
  // Some checkpoints hold the length before the stretch beside the dictionary; that one counts, as in transformers.
  const bool length_stated =
      fields.has("original_max_position_embeddings") || config.has("original_max_position_embeddings");
  if (type == "default") return rope;
  if (type == "linear") {
    rope.scaling = model::RopeSpec::Scaling::kLinear;
    VOLLEY_ASSIGN(rope.factor, fields.number("factor", kPositive));
    return rope;
  }
  VOLLEY_ASSIGN(rope.original_max_position,
                fields.number("original_max_position_embeddings", kPositive, max_positions));
  VOLLEY_ASSIGN(rope.original_max_position,
                config.number("original_max_position_embeddings", kPositive, rope.original_max_position));
  if (type == "llama3") {
    VOLLEY_RETURN_IF_ERROR(read_llama3(fields, rope));
  } else if (type == "yarn") {
    VOLLEY_RETURN_IF_ERROR(read_yarn(fields, max_positions, rope));
    const double stretched = std::min(rope.factor * rope.original_max_position, double{kMaxPositions});
    if (length_stated) max_positions = std::max(max_positions, static_cast<int32_t>(stretched));
  } else {
    return fields.unbuilt("rope_type",
                          "is \"" + type + "\", which is not built; built are default, linear, llama3 and yarn");
  }
  return rope;
}

}  // namespace volley::families
