#include "decode/dflash/speculators_format.h"

#include <nlohmann/json.hpp>

namespace volley::decode::dflash {
using families::ConfigFields;

namespace {

// How it was trained, and sizes of parts that only other projectors have.
constexpr std::string_view kInertForSpeculators[] = {
    "auf",
    "ce_loss_alpha",
    "confidence_head_alpha",
    "emb_dim",
    "gru_hidden_dim",
    "l1_loss_alpha",
    "lambda_base_decay_ratio",
    "lambda_base_start",
    "loss_decay_gamma",
    "max_anchors",
    "num_anchors",
    "pure_draft_prefix_len",
    "speculators_config",  // decode/proposers.cc has read these two to tell the kind of DFlash
    "speculators_model_type",
    "speculators_version",
    "tie_word_embeddings",
};

// Decoder fields that may also stand at the top, where they count first.
constexpr const char* kOverrides[] = {"layer_types", "use_sliding_window", "sliding_window", "max_window_layers"};

// Fields that the DFlash format has under the same names.
constexpr const char* kSame[] = {"draft_vocab_size", "target_hidden_size", "projector_type", "quantization_config",
                                 "use_aux_hidden_state"};
constexpr const char* kOfDFlash2[] = {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"};

// What the files say that they are.
Result<std::string> algorithm_of(const ConfigFields& config) {
  VOLLEY_ASSIGN(std::string algorithm, config.text("speculators_model_type", ""));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> more, config.object("speculators_config"));
  if (more) {
    more->take_all();  // the engine's options say how to draft and verify, not the file
    VOLLEY_ASSIGN(algorithm, more->text("algorithm", algorithm));
  }
  return algorithm;
}

// DSpark's fields, with the library's defaults. It calls the projector dflash, too.
Status convert_dspark(const ConfigFields& config, nlohmann::json& converted) {
  nlohmann::json& own = converted["dflash_config"];
  converted["architectures"] = {"DSparkDraftModel"};
  if (converted.value("projector_type", nlohmann::json()) == "dflash") converted["projector_type"] = "dspark";
  VOLLEY_ASSIGN(own["shift_label"], config.boolean("sample_from_anchor", true));
  VOLLEY_ASSIGN(own["markov_rank"], config.integer("markov_rank", 0, INT32_MAX, 256));
  VOLLEY_ASSIGN(own["markov_head_type"], config.text("markov_head_type", "vanilla"));
  VOLLEY_ASSIGN(own["enable_confidence_head"], config.boolean("enable_confidence_head", true));
  VOLLEY_ASSIGN(own["confidence_head_with_markov"], config.boolean("confidence_head_with_markov", true));
  return {};
}

}  // namespace

bool is_speculators_format(const ConfigFields& config) {
  return config.has("speculators_model_type") || config.has("speculators_config") ||
         config.has("transformer_layer_config");
}

Result<nlohmann::json> from_speculators_format(const ConfigFields& config) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> decoder, config.object("transformer_layer_config"));
  if (!decoder) return config.wrong("transformer_layer_config", "is missing: it must hold the drafter's sizes");
  decoder->take_all();  // the reader of the result checks each field
  nlohmann::json converted = decoder->json();
  // The library builds Qwen3's layers whatever the type is called. Loading refuses tensors of other layers.
  if (converted.value("model_type", nlohmann::json()) == "llama") converted["model_type"] = "qwen3";
  const auto copy = [&](const char* key) {
    if (config.has(key)) converted[key] = config.json()[key];
  };
  for (const char* key : kOverrides) copy(key);
  for (const char* key : kSame) copy(key);

  nlohmann::json& own = converted["dflash_config"] = nlohmann::json::object();
  VOLLEY_ASSIGN(own["block_size"], config.integer("block_size", 2, INT32_MAX));
  VOLLEY_ASSIGN(own["mask_token_id"], config.integer("mask_token_id", 0, INT32_MAX));
  constexpr const char* kLayers = "aux_hidden_state_layer_ids";
  VOLLEY_ASSIGN(std::vector<int32_t> layers, config.integers(kLayers, 1, kMaxTargetLayers));
  if (layers.empty()) return config.wrong(kLayers, "is missing: it must name the target's layers that are read");
  for (int32_t& layer : layers) --layer;  // 0 is the embedding here, but the first layer in the DFlash format
  own["target_layer_ids"] = layers;
  VOLLEY_ASSIGN(const std::string algorithm, algorithm_of(config));
  const bool dflash2 = algorithm == "dflash2";
  if (algorithm == "dspark") VOLLEY_RETURN_IF_ERROR(convert_dspark(config, converted));
  if (dflash2) {
    converted["architectures"] = {"DFlash2DraftModel"};
    for (const char* key : kOfDFlash2) copy(key);
  }
  VOLLEY_ASSIGN(const bool bidirectional, config.boolean("sliding_window_non_causal", dflash2));
  if (bidirectional) converted["is_causal"] = false;
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread(kInertForSpeculators));
  return converted;
}

}  // namespace volley::decode::dflash
