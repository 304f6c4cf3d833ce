// config.json of a DFlash drafter. What the checkpoint says of itself was read off the published ones and the reference
// implementation; whatever it asks for that is not built is refused by name, because a drafter that runs differently
// from how it was trained gives right text and no speed, and nobody would know why.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "spec/dflash/config.h"

namespace volley::spec::dflash {
using families::ConfigFields;

namespace {

constexpr int32_t kMaxBlock = 1024;
constexpr int32_t kMaxTargetLayers = 1 << 12;

// Fields that later checkpoints have, at the top or inside dflash_config, and the value that means "off".
struct Extension {
  const char* key;
  double off;
};
constexpr std::array<Extension, 9> kExtensions = {{
    {"attention_sink_bias", 0},
    {"enable_confidence_head", 0},
    {"fc_layernorm", 0},
    {"final_logit_softcapping", 0},
    {"input_embedding_scale", 1},
    {"markov_rank", 0},
    {"output_multiplier", 1},
    {"selector_rank", 0},
    {"conv_kernel_size", 0},
}};
constexpr std::array<const char*, 4> kOwnKeys = {"mask_token_id", "target_layer_ids", "block_size", "causal"};

// The top level and dflash_config, which may each hold the drafter's own fields; dflash_config counts first.
struct DraftFields {
  ConfigFields top;
  ConfigFields own;
  const ConfigFields& of(const char* key) const { return !own.has(key) && top.has(key) ? top : own; }
};

bool is_off(const nlohmann::json& value, double off) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == off;
}

Status refuse_extensions(const DraftFields& fields) {
  for (const ConfigFields* level : {&fields.top, &fields.own}) {
    for (const Extension& extension : kExtensions) {
      if (level->has(extension.key) && !is_off(level->json()[extension.key], extension.off)) {
        return level->unbuilt(extension.key, "asks for an extension of DFlash that is not built");
      }
    }
  }
  for (const auto& [key, value] : fields.own.json().items()) {
    const auto is_key = [&key = key](const char* known) { return key == known; };
    const bool known = std::any_of(kOwnKeys.begin(), kOwnKeys.end(), is_key) ||
                       std::any_of(kExtensions.begin(), kExtensions.end(),
                                   [&](const Extension& extension) { return is_key(extension.key); });
    if (!known && !is_off(value, 0)) return fields.own.unbuilt(key, "is unknown: what it asks for is not built");
  }
  return {};
}

// Fields in which some checkpoints name sizes of their own for what is borrowed from the target.
Status refuse_own_sizes(const ConfigFields& config, const model::Decoder& decoder) {
  VOLLEY_ASSIGN(const int32_t vocab, config.integer("draft_vocab_size", 1, INT32_MAX, decoder.vocab));
  if (vocab != decoder.vocab) return config.unbuilt("draft_vocab_size", "other than vocab_size is not built");
  VOLLEY_ASSIGN(const int32_t hidden, config.integer("target_hidden_size", 1, INT32_MAX, decoder.hidden));
  if (hidden != decoder.hidden) return config.unbuilt("target_hidden_size", "other than hidden_size is not built");
  return {};
}

// Causal inside the block or not: is_causal for all layers, else dflash_config's causal for all, else by kind:
// drafters that say nothing were trained with causal sliding-window layers and bidirectional full ones.
Status read_layers(const DraftFields& fields, std::vector<model::Layer>& layers) {
  const ConfigFields& config = fields.top;
  VOLLEY_ASSIGN(const std::vector<std::string> types, families::read_layer_types(config, layers.size()));
  std::optional<bool> causal;
  if (fields.own.has("causal")) {
    VOLLEY_ASSIGN(causal, fields.own.boolean("causal"));
  }
  if (config.has("is_causal")) {
    VOLLEY_ASSIGN(causal, config.boolean("is_causal"));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string type = types.empty() ? "full_attention" : types[i];
    const bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention") {
      return config.unbuilt("layer_types",
                            "has \"" + type + "\", which is not built; built are full_attention and sliding_attention");
    }
    auto& attention = std::get<model::Attention>(layers[i].mixer);
    attention.qk_norm = true;
    attention.causal = causal.value_or(sliding);
    if (!sliding) continue;
    VOLLEY_ASSIGN(const bool use_windows, config.boolean("use_sliding_window", true));
    if (!use_windows) return config.wrong("use_sliding_window", "is false, but layer_types has sliding_attention");
    VOLLEY_ASSIGN(attention.window, config.integer("sliding_window", 1, INT32_MAX));
  }
  return {};
}

// Where the config names no layers: the middle one for a drafter of one layer, else one for each draft layer, evenly
// from 1 to L - 3. Rounding is to the nearest, halves to even, as in the reference implementation.
std::vector<int32_t> default_target_layers(int32_t target_layers, int32_t draft_layers) {
  if (draft_layers == 1) return {target_layers / 2};
  const int32_t span = target_layers - 4;
  const int32_t steps = draft_layers - 1;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < draft_layers; ++i) {
    const int32_t whole = 1 + i * span / steps;
    const int32_t twice_rest = 2 * (i * span % steps);
    const bool up = twice_rest > steps || (twice_rest == steps && whole % 2 != 0);
    ids.push_back(up ? whole + 1 : whole);
  }
  return ids;
}

Status read_target_layers(const DraftFields& fields, ProposerFacts& facts) {
  constexpr const char* kKey = "target_layer_ids";
  const ConfigFields& level = fields.of(kKey);
  VOLLEY_ASSIGN(facts.feature_layers, level.integers(kKey, 0, kMaxTargetLayers - 1));
  if (!facts.feature_layers.empty()) return {};
  if (level.has(kKey)) return level.wrong(kKey, "is empty: a drafter needs at least one feature");
  const int32_t draft_layers = static_cast<int32_t>(facts.decoder.layers.size());
  if (draft_layers > 1 && facts.target_layers < 4) {
    return fields.own.wrong(kKey, "is missing, and the target has too few layers (" +
                                      std::to_string(facts.target_layers) + ") for the default");
  }
  facts.feature_layers = default_target_layers(facts.target_layers, draft_layers);
  return {};
}

Status check_kind(const ConfigFields& config) {
  for (const char* key : {"speculators_config", "transformer_layer_config"}) {
    if (config.has(key)) {
      return config.unbuilt(key,
                            "belongs to the format of the speculators library, which is not built; convert the "
                            "checkpoint to the DFlash format");
    }
  }
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  if (architectures.empty())
    return config.wrong("architectures", "is missing: it must name the drafter's architecture");
  if (architectures[0] != "DFlashDraftModel") {
    return config.unbuilt("architectures", "is " + architectures[0] +
                                               ", which is not a drafter that is built; built is DFlashDraftModel");
  }
  VOLLEY_ASSIGN(const std::string model_type, config.text("model_type", "qwen3"));
  if (model_type != "qwen3") {
    return config.unbuilt("model_type", "is \"" + model_type + "\", which is not built in a drafter; built is qwen3");
  }
  return {};
}

}  // namespace

Result<ProposerFacts> read_config(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  VOLLEY_RETURN_IF_ERROR(check_kind(config));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> own, config.object("dflash_config"));
  const nlohmann::json nothing = nlohmann::json::object();
  const DraftFields fields{config, own.value_or(ConfigFields(nothing, config.where() + ": dflash_config"))};
  VOLLEY_RETURN_IF_ERROR(refuse_extensions(fields));

  ProposerFacts facts;
  facts.name = "dflash";
  facts.architecture = "DFlashDraftModel";
  facts.names.prefixes = {"", "model."};
  VOLLEY_ASSIGN(families::DenseConfig dense, families::read_dense(config, "dflash"));
  facts.decoder = std::move(dense.decoder);
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  if (bias) return config.unbuilt("attention_bias", "is true: biases of projections are not built");
  VOLLEY_RETURN_IF_ERROR(refuse_own_sizes(config, facts.decoder));
  VOLLEY_RETURN_IF_ERROR(read_layers(fields, facts.decoder.layers));
  VOLLEY_ASSIGN(facts.block_size, fields.of("block_size").integer("block_size", 2, kMaxBlock));
  VOLLEY_ASSIGN(facts.target_layers, config.integer("num_target_layers", 1, kMaxTargetLayers));
  VOLLEY_ASSIGN(facts.mask_token, fields.of("mask_token_id").integer("mask_token_id", 0, INT32_MAX));
  VOLLEY_RETURN_IF_ERROR(read_target_layers(fields, facts));
  facts.params = draft_params(facts.decoder, facts.feature_layers.size());
  return facts;
}

}  // namespace volley::spec::dflash
