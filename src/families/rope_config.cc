#include "families/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace volley::families {
namespace {

constexpr NumberRange kPositive{.min = 0, .max = 1e12, .min_excluded = true};

// Objects that may state the same facts. A field is read from the first object that has it; the others must agree.
class Places {
 public:
  explicit Places(std::vector<ConfigFields> places) : places_(std::move(places)) {}

  const std::vector<ConfigFields>& all() const { return places_; }
  bool has(const char* key) const {
    return std::ranges::any_of(places_, [&](const ConfigFields& place) { return place.has(key); });
  }
  Result<double> number(const char* key, NumberRange range, std::optional<double> fallback = {}) const {
    VOLLEY_ASSIGN(const Fact fact, stated({key}));
    return fact.place.number(key, range, fallback);
  }
  Result<bool> boolean(const char* key, bool fallback) const {
    VOLLEY_ASSIGN(const Fact fact, stated({key}));
    return fact.place.boolean(key, fallback);
  }
  Result<std::vector<int32_t>> integers(const char* key, int32_t min, int32_t max) const {
    VOLLEY_ASSIGN(const Fact fact, stated({key}));
    return fact.place.integers(key, min, max);
  }
  // spellings: names of one field.
  Result<std::string> text(std::span<const char* const> spellings, const char* fallback) const {
    VOLLEY_ASSIGN(const Fact fact, stated(spellings));
    return fact.place.text(fact.key, fallback);
  }
  Error wrong(const char* key, const std::string& what) const { return naming(key).wrong(key, what); }
  Error unbuilt(const char* key, const std::string& what) const { return naming(key).unbuilt(key, what); }

 private:
  struct Fact {
    ConfigFields place;
    const char* key;
    const nlohmann::json& value() const { return place.json()[key]; }
  };

  Result<Fact> stated(std::span<const char* const> spellings) const {
    std::optional<Fact> first;
    for (const ConfigFields& place : places_) {
      for (const char* key : spellings) {
        if (!place.has(key)) continue;
        const Fact fact{place, key};
        if (!first) first = fact;
        if (fact.value() == first->value()) continue;
        return place.wrong(key, "is " + fact.value().dump() + ", which contradicts \"" + first->key + "\" " +
                                    first->value().dump() + " in " + first->place.where() + ": remove one of the two");
      }
    }
    return first ? *first : Fact{places_.front(), spellings[0]};
  }
  Result<Fact> stated(std::initializer_list<const char*> spellings) const {
    return stated(std::span(spellings.begin(), spellings.size()));
  }
  const ConfigFields& naming(const char* key) const {
    const auto place = std::ranges::find_if(places_, [&](const ConfigFields& p) { return p.has(key); });
    return place != places_.end() ? *place : places_.front();
  }

  std::vector<ConfigFields> places_;  // one at least
};

// The dictionaries that describe the rotation: rope_parameters of transformers 5, rope_scaling of 4, or both.
Result<std::vector<ConfigFields>> dictionaries(const ConfigFields& config) {
  std::vector<ConfigFields> found;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    VOLLEY_ASSIGN(std::optional<ConfigFields> fields, config.object(name));
    if (fields) found.push_back(*std::move(fields));
  }
  return found;
}

// The rotated fraction of a head.
Status read_partial(const Places& places, std::optional<double>& partial) {
  VOLLEY_ASSIGN(const double stated, places.number("partial_rotary_factor", kPositive, partial.value_or(1.0)));
  if (!partial && stated != 1.0) return places.unbuilt("partial_rotary_factor", "other than 1 is not built");
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

// "proportional": the first pairs turn as in a head that turns whole, the others not at all.
Status read_turning(const ConfigFields& config, double partial, model::RopeSpec& rope) {
  const double turning = std::floor(rope.dim * partial / 2);
  if (turning < 1 || turning > rope.dim / 2) {
    return config.wrong("partial_rotary_factor", "makes " + std::to_string(static_cast<int64_t>(turning)) + " of the " +
                                                     std::to_string(rope.dim / 2) + " pairs of a head turn");
  }
  if (turning < rope.dim / 2) rope.turning = static_cast<int32_t>(turning);
  return {};
}

// M-RoPE: how many of the pairs that turn follow a token's position in time, height and width.
Status read_axes(const Places& fields, model::RopeSpec& rope) {
  VOLLEY_ASSIGN(const bool interleaved, fields.boolean("mrope_interleaved", true));
  if (!interleaved) return fields.unbuilt("mrope_interleaved", "is false, which is not built");
  if (!fields.has("mrope_section")) return {};
  VOLLEY_ASSIGN(const std::vector<int32_t> sections, fields.integers("mrope_section", 0, rope.dim));
  const int32_t pairs = (rope.rotated > 0 ? rope.rotated : rope.dim) / 2;
  if (sections.size() != rope.axes.size() || std::accumulate(sections.begin(), sections.end(), 0) != pairs) {
    return fields.wrong("mrope_section", "must have three numbers, whose sum is the " + std::to_string(pairs) +
                                             " pairs of a head that turn");
  }
  std::ranges::copy(sections, rope.axes.begin());
  return {};
}

Status refuse_other_rotations(const Places& fields, bool multimodal) {
  if (!multimodal && fields.has("mrope_section")) {
    return fields.unbuilt("mrope_section", "(multimodal RoPE) is not built");
  }
  for (const ConfigFields& place : fields.all()) {
    for (const auto& [key, value] : place.json().items()) {
      if (value.is_object())
        return place.unbuilt(key, "is a rotary embedding for some layers only, which is not built");
    }
  }
  return {};
}

Status read_llama3(const Places& fields, model::RopeSpec& rope) {
  rope.scaling = model::RopeSpec::Scaling::kLlama3;
  VOLLEY_ASSIGN(rope.factor, fields.number("factor", kPositive));
  VOLLEY_ASSIGN(rope.low_freq_factor, fields.number("low_freq_factor", kPositive));
  VOLLEY_ASSIGN(rope.high_freq_factor, fields.number("high_freq_factor", kPositive));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return fields.wrong("high_freq_factor", "must be above \"low_freq_factor\"");
  }
  return {};
}

// "attn_factor" multiplies YaRN's own factor: DeepSeek-R1-0528-Qwen3-8B states it so that the product is 1, as vLLM
// read it when that came out. transformers ignores it.
Status read_attn_factor(const Places& fields, model::RopeSpec& rope) {
  if (!fields.has("attn_factor")) return {};
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim"}) {
    if (fields.has(other))
      return fields.wrong("attn_factor", "stands beside \"" + std::string(other) + "\": remove one");
  }
  VOLLEY_ASSIGN(const double times, fields.number("attn_factor", {.min = 0, .max = 1e6, .min_excluded = true}));
  rope.attention_factor = times * (rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0);
  return {};
}

Status read_yarn(const Places& fields, int32_t max_positions, model::RopeSpec& rope) {
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

Result<std::string> scaling_type(const Places& fields) {
  constexpr const char* kSpellings[] = {"rope_type", "type"};  // some writers write both, for old and new readers
  VOLLEY_ASSIGN(const std::string type, fields.text(kSpellings, "default"));
  if (!fields.has("rope_type") && !fields.has("type") && fields.has("factor")) {
    return fields.wrong("rope_type", "is missing beside \"factor\"");
  }
  return type;
}

}  // namespace

Result<model::RopeSpec> read_rope(const ConfigFields& config, int32_t head_dim, std::optional<double> partial,
                                  int32_t& max_positions) {
  const bool multimodal = partial.has_value();
  model::RopeSpec rope;
  rope.dim = head_dim;
  VOLLEY_ASSIGN(std::vector<ConfigFields> found, dictionaries(config));
  std::string type = "default";
  if (!found.empty()) {
    VOLLEY_ASSIGN(type, scaling_type(Places(found)));
  }
  std::vector<ConfigFields> all = found;
  all.push_back(config);
  const Places everywhere(std::move(all));
  VOLLEY_ASSIGN(rope.theta, everywhere.number("rope_theta", kTheta, rope.theta));
  if (type == "proportional" && !partial) partial = 1.0;
  VOLLEY_RETURN_IF_ERROR(read_partial(everywhere, partial));
  if (type == "proportional") {
    VOLLEY_RETURN_IF_ERROR(read_turning(config, partial.value_or(1.0), rope));
  } else if (partial) {
    VOLLEY_RETURN_IF_ERROR(read_rotated(config, *partial, head_dim, rope));
  }
  if (found.empty()) return rope;
  const Places fields(std::move(found));

  VOLLEY_RETURN_IF_ERROR(refuse_other_rotations(fields, multimodal));
  if (multimodal) VOLLEY_RETURN_IF_ERROR(read_axes(fields, rope));
  // Some checkpoints hold the original length beside the dictionary; that one takes precedence, as in transformers.
  const bool length_stated =
      fields.has("original_max_position_embeddings") || config.has("original_max_position_embeddings");
  if (type == "default") return rope;
  if (type == "linear" || type == "proportional") {
    const std::optional<double> usual = type == "linear" ? std::nullopt : std::optional(1.0);
    VOLLEY_ASSIGN(rope.factor, fields.number("factor", kPositive, usual));
    if (rope.factor != 1) rope.scaling = model::RopeSpec::Scaling::kLinear;
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
    return fields.unbuilt(
        "rope_type",
        "is \"" + type + "\", which is not built; built are default, linear, proportional, llama3 and yarn");
  }
  return rope;
}

}  // namespace volley::families
