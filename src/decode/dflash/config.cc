// config.json of a DFlash drafter. What the checkpoint says of itself was read off the published ones and the reference
// implementation; whatever it asks for that is not built is refused by name, because a drafter that runs differently
// from how it was trained gives right text and no speed, and nobody would know why.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "decode/dflash/config.h"
#include "decode/dflash/speculators_format.h"
#include "decode/dflash/vocabulary.h"
#include "families/common.h"
#include "families/gemma.h"
#include "families/quantisation.h"
#include "gguf/model_file.h"

namespace volley::decode::dflash {
using families::ConfigFields;

namespace {

constexpr int32_t kMaxBlock = 1024;
constexpr int32_t kMaxTaps = 16;

// DSpark as the DeepSpec library and as SpecForge call it: DFlash's network and, unless their rank is 0, Markov heads.
// NVIDIA's Model Optimizer calls it DFlash, with a projector_type of its own.
constexpr std::string_view kDeepSpec = "Qwen3DSparkModel", kSpecForge = "DSparkDraftModel";
// Liquid's name for the latter.
constexpr std::string_view kLiquid = "Lfm2DSparkDraftModel";
constexpr const char* kProjector = "projector_type";
// DeepSpec's network of the layers of such a target.
constexpr std::string_view kDeepSpecGemma = "Gemma4DSparkModel";

constexpr std::pair<std::string_view, ops::Scoring> kMarkovHeads[] = {
    {"vanilla", ops::Scoring::kVanilla}, {"gated", ops::Scoring::kGated}, {"rnn", ops::Scoring::kRecurrent}};

// Other names of its tensors; the last four are NVIDIA's.
constexpr std::pair<const char*, const char*> kHeadNames[] = {{"markov_head.", "logit_head."},
                                                              {"markov_head.markov_w", "markov_w"},
                                                              {"markov_head.gate_proj.", "gate_proj."},
                                                              {"markov_head.joint_proj.", "joint_proj."},
                                                              {"confidence_head.proj.", "confidence_proj."}};

// A Markov head's bias is computed for so many of a row's tokens.
constexpr int32_t kMarkovCandidates = 16;

// DFlash 2 adds convolutions around each block's rows and a selector.
constexpr std::string_view kDFlash2 = "DFlash2DraftModel";

// mask_token repeats mask_token_id as text; num_anchors only matters for training; the others name the target's kind.
constexpr std::string_view kAlsoInert[] = {"mask_token", "num_anchors", "target_model_type", "target_text_model_type",
                                           "enable_moe_block"};

// DeepSpec saves its target's configuration with the drafter's facts put over it. Its network is Qwen3's whatever the
// target is, without gates, and turns whole heads (deepseek-ai/DeepSpec, issue 71): these say nothing of it.
constexpr const char* kOfDeepSpecsTarget[] = {
    "attn_output_gate",     "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads",  "linear_value_head_dim",  "mamba_ssm_dtype",
    "mrope_interleaved",    "mrope_section",           "output_gate_type",       "partial_rotary_factor",
};

void drop_target_fields(nlohmann::json& config) {
  const nlohmann::json architectures = config.value("architectures", nlohmann::json());
  if (architectures == nlohmann::json::array({kDeepSpecGemma})) config = families::in_gemma4_words(config);
  if (architectures != nlohmann::json::array({kDeepSpec})) return;
  const auto rope = config.find("rope_parameters");
  for (const char* key : kOfDeepSpecsTarget) {
    config.erase(key);
    if (rope != config.end() && rope->is_object()) rope->erase(key);
  }
}

// Looks a drafter's own field up in dflash_config first, then at the top level: either may hold it.
struct DraftFields {
  ConfigFields top;
  ConfigFields own;
  const ConfigFields& of(const char* key) const {
    const bool at_top = top.has(key);
    return !own.has(key) && at_top ? top : own;
  }
};

// Fields that checkpoints have to say that they are something else, and sizes of their own for what is borrowed.
Status refuse_variants(const DraftFields& fields, const model::Decoder& decoder, bool dspark) {
  constexpr const char* kFeatures = "use_aux_hidden_state";
  const std::string usual = dspark ? "dspark" : "dflash";
  VOLLEY_ASSIGN(const std::string type, fields.of(kProjector).text(kProjector, usual));
  if (type != usual) {
    return fields.of(kProjector)
        .unbuilt(kProjector, "is " + kind_text(type) + ", which is not built for a drafter of these architectures");
  }
  VOLLEY_ASSIGN(const bool reads, fields.of(kFeatures).boolean(kFeatures, true));
  if (!reads) return fields.of(kFeatures).unbuilt(kFeatures, "is false, which is not built");
  const ConfigFields& width = fields.of("target_hidden_size");
  VOLLEY_ASSIGN(const int32_t own, width.integer("target_hidden_size", 1, INT32_MAX, decoder.hidden));
  if (own == decoder.hidden) return {};
  return width.unbuilt("target_hidden_size", "is " + std::to_string(own) + ", other than the " +
                                                 std::to_string(decoder.hidden) +
                                                 " of hidden_size, which is not built");
}

// Decides whether a layer is causal inside the block: by is_causal for all layers, else by dflash_config's causal for
// all, else by kind. Drafters that say nothing were trained with causal sliding-window layers and bidirectional full
// ones. Layers that slide only because of use_swa were trained bidirectional.
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

// Chooses the target layers where the config names none: the middle one for a drafter of one layer, else one for each
// draft layer, evenly from 1 to L - 3. Halves round to even, as in the reference implementation.
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

Status read_target_layers(const DraftFields& fields, Facts& facts) {
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

// Reads whether the logits cover the whole vocabulary, and whether they are softcapped.
Status read_logits(const DraftFields& fields, Facts& facts) {
  constexpr const char* kSize = "draft_vocab_size";
  const int32_t vocab = facts.decoder.vocab;
  VOLLEY_ASSIGN(const int32_t size, fields.of(kSize).integer(kSize, 1, vocab, vocab));
  facts.borrows_head = size == vocab;
  if (size < vocab) {
    facts.draft_vocab = size;
    facts.names.copies.push_back(kInDraftVocabulary);
  }
  constexpr const char* kCap = "final_logit_softcapping";
  VOLLEY_ASSIGN(const double cap, fields.of(kCap).number(kCap, {.min = 0, .max = 1e6}, 0.0));
  facts.decoder.logits_end.cap = static_cast<float>(cap);
  return {};
}

Status read_dflash2(const DraftFields& fields, Facts& facts) {
  const auto integer = [&](const char* key, int32_t most) { return fields.of(key).integer(key, 1, most); };
  model::Decoder& decoder = facts.decoder;
  constexpr const char *kGroup = "conv_group_size", *kVocab = "draft_vocab_size";
  VOLLEY_ASSIGN(decoder.block_conv.taps, integer("conv_kernel_size", kMaxTaps));
  VOLLEY_ASSIGN(decoder.block_conv.group, integer(kGroup, decoder.hidden));
  if (decoder.hidden % decoder.block_conv.group != 0) {
    return fields.of(kGroup).wrong(kGroup, "is " + std::to_string(decoder.block_conv.group) +
                                               ", which does not divide hidden_size (" +
                                               std::to_string(decoder.hidden) + ")");
  }
  VOLLEY_ASSIGN(facts.selector.rank, integer("selector_rank", ops::kMaxSelectorRank));
  VOLLEY_ASSIGN(facts.selector.top_k, integer("selector_top_k", ops::kMaxCandidates));
  if (facts.draft_vocab > 0) {
    return fields.of(kVocab).unbuilt(
        kVocab, "is " + std::to_string(facts.draft_vocab) + ": a selector of a part of the vocabulary is not built");
  }
  const auto factor = [&](const char* key) { return fields.of(key).number(key, {.min = 1e-6, .max = 1e6}, 1.0); };
  VOLLEY_ASSIGN(const double multiplier, factor("output_multiplier"));
  decoder.logits_end.scale = static_cast<float>(multiplier);
  VOLLEY_ASSIGN(const double scale, factor("input_embedding_scale"));
  facts.embedding_scale = static_cast<float>(scale);
  facts.fields.push_back({"conv_kernel_size", decoder.block_conv.taps});
  facts.fields.push_back({"selector_top_k", facts.selector.top_k});
  return {};
}

// What DSpark has beside. A Markov head's fields in a drafter of another kind are refused as unknown.
Status read_dspark(const DraftFields& fields, Facts& facts) {
  const auto boolean = [&](const char* key, bool fallback) { return fields.of(key).boolean(key, fallback); };
  constexpr const char *kRank = "markov_rank", *kType = "markov_head_type", *kHead = "enable_confidence_head";
  constexpr const char *kAlpha = "confidence_head_alpha", *kMode = "attention_mode";
  Selector& selector = facts.selector;
  VOLLEY_ASSIGN(selector.rank, fields.of(kRank).integer(kRank, 0, ops::kMaxSelectorRank, 0));
  selector.top_k = kMarkovCandidates;
  VOLLEY_ASSIGN(const std::string type, fields.of(kType).text(kType, "vanilla"));
  const auto head = std::ranges::find(kMarkovHeads, std::string_view(type), [](const auto& of) { return of.first; });
  if (head == std::end(kMarkovHeads)) {
    return fields.of(kType).unbuilt(kType, "is \"" + type + "\", which is not built; built are vanilla, gated and rnn");
  }
  selector.scoring = head->second;
  // The weight of the confidence head's loss: where nothing else is said, a head that was trained is there.
  VOLLEY_ASSIGN(const double alpha, fields.of(kAlpha).number(kAlpha, {.min = 0, .max = 1e6}, 0.0));
  VOLLEY_ASSIGN(const bool nvidias, boolean("use_confidence_head", false));
  VOLLEY_ASSIGN(const bool confident, boolean(kHead, alpha > 0 || nvidias));
  VOLLEY_ASSIGN(const bool sees_token, boolean("confidence_head_with_markov", nvidias));
  if (confident && selector.rank == 0) {
    return fields.of(kHead).unbuilt(kHead, "asks for a confidence head without a Markov head, which is not built");
  }
  if (confident) selector.confidence = sees_token;
  VOLLEY_ASSIGN(const std::string mode, fields.of(kMode).text(kMode, "gqa"));
  if (mode != "gqa") return fields.of(kMode).unbuilt(kMode, "is \"" + mode + "\", which is not built; built is gqa");
  for (const auto& [ours, stored] : kHeadNames) facts.names.aliases.push_back({ours, stored});
  if (selector.rank > 0) facts.fields.push_back({kRank, selector.rank});
  return {};
}

// Reads the DFlash format. states_target_layers: whether its files say how many layers the target has.
Result<Facts> read_facts(const ConfigFields& config, const std::string& dir, bool states_target_layers) {
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  const std::string_view architecture = architectures.empty() ? "" : std::string_view(architectures[0]);
  VOLLEY_ASSIGN(const std::optional<ConfigFields> own, config.object("dflash_config"));
  const nlohmann::json nothing = nlohmann::json::object();
  const DraftFields fields{config, own.value_or(ConfigFields(nothing, config.where() + ": dflash_config"))};
  VOLLEY_ASSIGN(const std::string projector, fields.of(kProjector).text(kProjector, ""));
  const bool gemma = architecture == kDeepSpecGemma, deepspec = gemma || architecture == kDeepSpec;
  const bool dflash2 = architecture == kDFlash2;
  const bool dspark =
      deepspec || architecture == kSpecForge || architecture == kLiquid || (!dflash2 && projector == "dspark");
  VOLLEY_ASSIGN(const std::string model_type, config.text("model_type", "qwen3"));
  const bool known = gemma ? model_type == "gemma4_text" || model_type == "gemma4_unified_text"
                           : model_type == "qwen3" || (dspark && model_type == "dspark");
  if (!known) {
    return config.unbuilt("model_type", "is \"" + model_type + "\", which is not built in a drafter; built is qwen3");
  }

  Facts facts;
  facts.architecture = dspark || dflash2 ? architecture : "DFlashDraftModel";
  if (deepspec) facts.names.copies = {"embed_tokens.weight", "lm_head.weight"};
  if (dspark) {  // a row's label is the token after it
    VOLLEY_ASSIGN(const bool shifted, fields.of("shift_label").boolean("shift_label", true));
    facts.first_proposal = shifted ? 0 : 1;
  }
  facts.names.prefixes = {"", "model."};
  facts.names.aliases = {
      {"layers.0.", "midlayer."}, {"fc.", "encoder.fc."}, {"hidden_norm.", "encoder.output_norm_enc."}};
  if (gemma) facts.names.inner.assign(std::begin(families::kGemmaNorms), std::end(families::kGemmaNorms));
  VOLLEY_ASSIGN(families::DenseConfig dense,
                gemma ? families::read_gemma4_dense(config) : families::read_dense(config, "dflash"));
  facts.decoder = std::move(dense.decoder);
  facts.decoder.family = "dflash";
  if (!gemma) {
    VOLLEY_RETURN_IF_ERROR(families::read_attention_bias(config, facts.decoder.layers));
    VOLLEY_RETURN_IF_ERROR(families::read_head_norms(config, facts.decoder.layers));
  }
  VOLLEY_ASSIGN(const bool halves, config.boolean("rope_is_neox_style", true));
  if (!halves) facts.decoder.ropes[0].interleaved = true;
  VOLLEY_RETURN_IF_ERROR(refuse_variants(fields, facts.decoder, dspark));
  VOLLEY_RETURN_IF_ERROR(read_layers(fields, facts.decoder.layers));
  VOLLEY_ASSIGN(const int32_t block_size, fields.of("block_size").integer("block_size", 2, kMaxBlock));
  facts.proposals = block_size - facts.first_proposal;
  const ConfigFields& count = fields.of("num_target_layers");
  if (states_target_layers || count.has("num_target_layers")) {
    VOLLEY_ASSIGN(facts.target_layers, count.integer("num_target_layers", 1, kMaxTargetLayers));
  }
  VOLLEY_ASSIGN(facts.mask_token, fields.of("mask_token_id").integer("mask_token_id", 0, INT32_MAX));
  VOLLEY_RETURN_IF_ERROR(read_target_layers(fields, facts));
  facts.fields = {{"mask_token_id", facts.mask_token}, {"target_layer_ids", facts.feature_layers}};
  if (facts.target_layers > 0) facts.fields.push_back({"num_target_layers", facts.target_layers});
  facts.likely_mistake =
      "its target_layer_ids are off by one (they count the target's layers from 0; aux_hidden_state_layer_ids of the "
      "speculators library count from the embedding)";
  VOLLEY_RETURN_IF_ERROR(read_logits(fields, facts));
  constexpr const char* kProposed = "proposed_vocab_size";
  if (facts.borrows_head && !dflash2 && !dspark && fields.of(kProposed).has(kProposed)) {
    VOLLEY_ASSIGN(facts.proposed_vocab, fields.of(kProposed).integer(kProposed, 1, facts.decoder.vocab));
    facts.fields.push_back({kProposed, facts.proposed_vocab});
  }
  if (dflash2) VOLLEY_RETURN_IF_ERROR(read_dflash2(fields, facts));
  if (dspark) VOLLEY_RETURN_IF_ERROR(read_dspark(fields, facts));
  VOLLEY_ASSIGN(facts.names.quantisation, families::read_quantisation(config, dir));
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread(kAlsoInert));
  facts.params = draft_params(facts);
  return facts;
}

}  // namespace

Result<Facts> read_config(const std::string& dir) {
  VOLLEY_ASSIGN(nlohmann::json json, families::read_json_file(dir + "/config.json"));
  drop_target_fields(json);
  const ConfigFields config(json, dir + "/config.json");
  const bool in_gguf = gguf::lies_in_file(config.where());  // such files do not say how many layers the target has
  if (!is_speculators_format(config)) return read_facts(config, dir, !in_gguf);
  VOLLEY_ASSIGN(const nlohmann::json converted, from_speculators_format(config));
  VOLLEY_ASSIGN(Facts facts, read_facts(ConfigFields(converted, config.where()), dir, false));
  for (const char* copy : {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}) {
    facts.names.copies.push_back(copy);
  }
  if (facts.draft_vocab == 0) facts.names.copies.push_back("lm_head.weight");
  return facts;
}

}  // namespace volley::decode::dflash
