// config.json of a DFlash drafter. What the checkpoint says of itself was read off the published ones and the reference
// implementation; whatever it asks for that is not built is refused by name, because a drafter that runs differently
// from how it was trained gives right text and no speed, and nobody would know why.
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/quantisation.h"
#include "spec/dflash/config.h"
#include "spec/dflash/speculators_format.h"
#include "spec/dflash/vocabulary.h"

namespace volley::spec::dflash {
using families::ConfigFields;

namespace {

constexpr int32_t kMaxBlock = 1024;
constexpr int32_t kMaxTargetLayers = 1 << 12;

// Beside mask_token_id: the same as text.
constexpr std::string_view kAlsoInert[] = {"mask_token"};

// The top level and dflash_config, which may each hold the drafter's own fields; dflash_config counts first.
struct DraftFields {
  ConfigFields top;
  ConfigFields own;
  const ConfigFields& of(const char* key) const {
    const bool at_top = top.has(key);
    return !own.has(key) && at_top ? top : own;
  }
};

// Fields that checkpoints have to say that they are something else, and sizes of their own for what is borrowed.
Status refuse_variants(const DraftFields& fields, const model::Decoder& decoder) {
  const ConfigFields& projector = fields.of("projector_type");
  VOLLEY_ASSIGN(const std::string type, projector.text("projector_type", "dflash"));
  if (type != "dflash") return projector.unbuilt("projector_type", "is \"" + type + "\", which is not built");
  const auto check_equal = [&](const char* key, int32_t ours, const char* other) -> Status {
    VOLLEY_ASSIGN(const int32_t own, fields.of(key).integer(key, 1, INT32_MAX, ours));
    if (own == ours) return {};
    return fields.of(key).unbuilt(key, "is " + std::to_string(own) + ", other than the " + std::to_string(ours) +
                                           " of " + other + ", which is not built");
  };
  return check_equal("target_hidden_size", decoder.hidden, "hidden_size");
}

// Causal inside the block or not: is_causal for all layers, else dflash_config's causal for all, else by kind:
// drafters that say nothing were trained with causal sliding-window layers and bidirectional full ones. Layers that
// slide because of use_swa alone were trained bidirectional.
Status read_layers(const DraftFields& fields, std::vector<model::Layer>& layers) {
  std::optional<int32_t> window;
  if (const ConfigFields& level = fields.of("swa_window_size"); level.has("swa_window_size")) {
    VOLLEY_ASSIGN(window, level.integer("swa_window_size", 1, families::kMaxWindow));
  }
  VOLLEY_RETURN_IF_ERROR(families::read_windows(fields.top, layers, window));
  VOLLEY_ASSIGN(const bool all_slide, fields.of("use_swa").boolean("use_swa", false));
  std::optional<bool> causal;
  if (fields.own.has("causal")) {
    VOLLEY_ASSIGN(causal, fields.own.boolean("causal"));
  }
  if (fields.top.has("is_causal")) {
    VOLLEY_ASSIGN(causal, fields.top.boolean("is_causal"));
  }
  bool any_slides = false;
  for (model::Layer& layer : layers) {
    const bool slides = families::attention_of(layer).window > 0;
    families::attention_of(layer).causal = causal.value_or(slides);
    any_slides = any_slides || slides;
  }
  if (!all_slide || any_slides) return {};
  VOLLEY_ASSIGN(const int32_t size, fields.top.integer("sliding_window", 1, families::kMaxWindow, window));
  for (model::Layer& layer : layers) families::attention_of(layer).window = window.value_or(size);
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

// What becomes of the last hidden states: logits of the whole vocabulary or of a part of it, softcapped or not.
Status read_logits(const DraftFields& fields, ProposerFacts& facts) {
  constexpr const char* kSize = "draft_vocab_size";
  const int32_t vocab = facts.decoder.vocab;
  VOLLEY_ASSIGN(const int32_t size, fields.of(kSize).integer(kSize, 1, vocab, vocab));
  if (size < vocab) {
    facts.draft_vocab = size;
    facts.names.copies.push_back(kInDraftVocabulary);
  }
  constexpr const char* kCap = "final_logit_softcapping";
  VOLLEY_ASSIGN(const double cap, fields.of(kCap).number(kCap, {.min = 0, .max = 1e6}, 0.0));
  facts.logit_softcap = static_cast<float>(cap);
  return {};
}

Status check_kind(const ConfigFields& config) {
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

// Reads the DFlash format. states_target_layers: whether its files say how many layers the target has.
Result<ProposerFacts> read_facts(const ConfigFields& config, const std::string& dir, bool states_target_layers) {
  VOLLEY_RETURN_IF_ERROR(check_kind(config));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> own, config.object("dflash_config"));
  const nlohmann::json nothing = nlohmann::json::object();
  const DraftFields fields{config, own.value_or(ConfigFields(nothing, config.where() + ": dflash_config"))};

  ProposerFacts facts;
  facts.name = "dflash";
  facts.architecture = "DFlashDraftModel";
  facts.names.prefixes = {"", "model."};
  facts.names.aliases = {
      {"layers.0.", "midlayer."}, {"fc.", "encoder.fc."}, {"hidden_norm.", "encoder.output_norm_enc."}};
  VOLLEY_ASSIGN(families::DenseConfig dense, families::read_dense(config, "dflash"));
  facts.decoder = std::move(dense.decoder);
  VOLLEY_RETURN_IF_ERROR(families::read_attention_bias(config, facts.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(families::read_head_norms(config, facts.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(refuse_variants(fields, facts.decoder));
  VOLLEY_RETURN_IF_ERROR(read_layers(fields, facts.decoder.layers));
  VOLLEY_ASSIGN(facts.block_size, fields.of("block_size").integer("block_size", 2, kMaxBlock));
  const ConfigFields& count = fields.of("num_target_layers");
  if (states_target_layers || count.has("num_target_layers")) {
    VOLLEY_ASSIGN(facts.target_layers, count.integer("num_target_layers", 1, kMaxTargetLayers));
  }
  VOLLEY_ASSIGN(facts.mask_token, fields.of("mask_token_id").integer("mask_token_id", 0, INT32_MAX));
  VOLLEY_RETURN_IF_ERROR(read_target_layers(fields, facts));
  VOLLEY_RETURN_IF_ERROR(read_logits(fields, facts));
  VOLLEY_ASSIGN(facts.names.quantisation, families::read_quantisation(config, dir));
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread(kAlsoInert));
  facts.params = draft_params(facts);
  return facts;
}

}  // namespace

Result<ProposerFacts> read_config(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  if (!is_speculators_format(config)) return read_facts(config, dir, true);
  VOLLEY_ASSIGN(const nlohmann::json converted, from_speculators_format(config));
  VOLLEY_ASSIGN(ProposerFacts facts, read_facts(ConfigFields(converted, config.where()), dir, false));
  for (const char* copy : {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}) {
    facts.names.copies.push_back(copy);
  }
  if (facts.draft_vocab == 0) facts.names.copies.push_back("lm_head.weight");
  return facts;
}

}  // namespace volley::spec::dflash
