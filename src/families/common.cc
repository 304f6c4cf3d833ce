#include "families/common.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "families/generation.h"
#include "families/rope_config.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::families {
namespace {

constexpr int32_t kMaxHeads = 1 << 12;
constexpr int32_t kMaxVocab = 1 << 24;
constexpr int32_t kMaxSparseStep = 1 << 20;

// The default of max_window_layers, as in transformers.
constexpr int32_t kFirstWindowLayer = 28;

// The head sizes that the attention kernels are built for.
constexpr int32_t kHeadDimStep = 16;

}  // namespace

Status check_head_dim(const ConfigFields& config, const char* key, int32_t head_dim) {
  const std::string is = "is " + std::to_string(head_dim);
  if (head_dim % 2 != 0) return config.wrong(key, is + ", but rotary embedding needs an even number");
  if (head_dim % kHeadDimStep == 0 && head_dim <= ops::kMaxHeadDim) return {};
  return config.unbuilt(key, is + ", which is not built; built are multiples of " + std::to_string(kHeadDimStep) +
                                 " up to " + std::to_string(ops::kMaxHeadDim));
}

namespace {

Status read_heads(const ConfigFields& config, int32_t hidden, std::optional<int32_t> head_dim, model::Attention& a) {
  VOLLEY_ASSIGN(a.heads, config.integer("num_attention_heads", 1, kMaxHeads));
  VOLLEY_ASSIGN(a.kv_heads, config.integer("num_key_value_heads", 1, kMaxHeads, a.heads));
  if (a.heads % a.kv_heads != 0) {
    return config.wrong("num_key_value_heads", "is " + std::to_string(a.kv_heads) + ", which does not divide the " +
                                                   std::to_string(a.heads) + " of num_attention_heads");
  }
  if (!config.has("head_dim") && !head_dim && hidden % a.heads != 0) {
    return config.wrong("head_dim", "is missing, and num_attention_heads (" + std::to_string(a.heads) +
                                        ") does not divide hidden_size (" + std::to_string(hidden) + ")");
  }
  VOLLEY_ASSIGN(a.head_dim, config.integer("head_dim", 1, kMaxWidth, head_dim.value_or(hidden / a.heads)));
  if (head_dim && a.head_dim != *head_dim) {
    return config.wrong("head_dim", "contradicts the other sizes, by which it is " + std::to_string(*head_dim));
  }
  VOLLEY_RETURN_IF_ERROR(check_head_dim(config, "head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  return {};
}

Status check_activation(const ConfigFields& config, const std::string& built) {
  VOLLEY_ASSIGN(const std::string activation, config.text("hidden_act", built.c_str()));
  if (activation == built) return {};
  return config.unbuilt("hidden_act", "is \"" + activation + "\", which is not built; built is " + built);
}

}  // namespace

Result<DenseConfig> read_dense(const ConfigFields& config, const std::string& family, const DenseRules& rules) {
  VOLLEY_RETURN_IF_ERROR(check_activation(config, rules.activation));
  DenseConfig dense;
  model::Decoder& spec = dense.decoder;
  spec.family = family;
  VOLLEY_ASSIGN(spec.hidden, config.integer("hidden_size", 1, kMaxWidth));
  model::Attention attention;
  VOLLEY_RETURN_IF_ERROR(read_heads(config, spec.hidden, rules.head_dim, attention));
  model::Dense ffn;
  VOLLEY_ASSIGN(ffn.inner, config.integer("intermediate_size", 1, kMaxWidth, rules.inner));
  ffn.gelu = rules.activation != "silu";
  VOLLEY_ASSIGN(spec.vocab, config.integer("vocab_size", 1, kMaxVocab));
  VOLLEY_ASSIGN(const double norm_eps, config.number("rms_norm_eps", {.min = 0, .max = 1, .min_excluded = true}, 1e-6));
  spec.norm_eps = static_cast<float>(norm_eps);
  VOLLEY_ASSIGN(spec.tied_embeddings, config.boolean("tie_word_embeddings", false));
  VOLLEY_ASSIGN(dense.max_positions, config.integer("max_position_embeddings", 1, kMaxPositions));
  VOLLEY_ASSIGN(spec.ropes.emplace_back(),
                read_rope(config, attention.head_dim, rules.partial_rotary, dense.max_positions));
  VOLLEY_ASSIGN(const int32_t layers, config.integer("num_hidden_layers", 1, kMaxLayers));
  spec.layers.assign(static_cast<size_t>(layers), {attention, ffn});
  return dense;
}

Result<TargetConfig> read_text_part(const ConfigFields& config, const ReadText& read) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> text, config.object("text_config"));
  if (!text) return read(config);
  VOLLEY_ASSIGN(TargetConfig target, read(*text));
  // transformers uses the outer one.
  VOLLEY_ASSIGN(target.decoder.tied_embeddings, config.boolean("tie_word_embeddings", target.decoder.tied_embeddings));
  VOLLEY_ASSIGN(target.eos_ids, read_eos_ids(*text, target.decoder.vocab));  // unless the outer object has some
  VOLLEY_ASSIGN(const std::optional<ConfigFields> vision, config.object("vision_config"));
  if (vision && vision->has("deepstack_visual_indexes")) {
    VOLLEY_ASSIGN(const std::vector<int32_t> deep, vision->integers("deepstack_visual_indexes", 0, kMaxLayers));
    if (deep.size() > target.decoder.layers.size()) {
      return vision->wrong("deepstack_visual_indexes", "has more entries than the decoder has layers");
    }
    target.decoder.added_layers = static_cast<int32_t>(deep.size());
  }
  if (vision) {
    read_tower(config, *vision, target);
    vision->take_all();
  }
  for (const char* token : {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"}) {
    config.has(token);
  }
  target.names.prefixes.insert(target.names.prefixes.begin(), "model.language_model.");
  if (!target.decoder.tower) target.names.skipped.push_back({"visual.", "vision"});
  return target;
}

Result<TargetConfig> read_translated(const ConfigFields& stated, const nlohmann::json& fields, const ReadText& read) {
  const ConfigFields text(fields, stated.where());
  VOLLEY_ASSIGN(TargetConfig target, read(text));
  for (const char* outer : {"architectures", "model_type", "quantization_config", "eos_token_id"}) text.has(outer);
  VOLLEY_RETURN_IF_ERROR(text.refuse_unread());
  stated.take_all();
  return target;
}

Status read_beside_text(const ConfigFields& config, const ConfigFields& text, std::initializer_list<const char*> unread,
                        TargetConfig& target) {
  VOLLEY_ASSIGN(target.eos_ids, read_eos_ids(text, target.decoder.vocab));  // unless the outer object has some
  VOLLEY_ASSIGN(target.decoder.tied_embeddings, config.boolean("tie_word_embeddings", target.decoder.tied_embeddings));
  for (const char* other : {"vision_config", "audio_config"}) {
    VOLLEY_ASSIGN(const std::optional<ConfigFields> tower, config.object(other));
    if (tower) tower->take_all();
  }
  for (const char* medium : {"image", "video", "audio", "boi", "eoi", "boa", "eoa"}) {
    for (const char* end : {"_token_id", "_token_index"}) config.has((std::string(medium) + end).c_str());
  }
  for (const char* field : unread) config.has(field);
  target.names.prefixes = {"language_model.model.", "model.language_model.", "language_model.", "model.", ""};
  for (const char* part : {"vision_tower.", "multi_modal_projector.", "mm_projector.", "embed_vision."}) {
    target.names.skipped.push_back({part, "vision"});
  }
  for (const char* part : {"audio_tower.", "embed_audio."}) target.names.skipped.push_back({part, "sound"});
  return {};
}

Status check_theta_stated(const ConfigFields& config) {
  bool stated = config.has("rope_theta");
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    VOLLEY_ASSIGN(const std::optional<ConfigFields> fields, config.object(name));
    stated = stated || (fields && fields->has("rope_theta"));
  }
  if (stated) return {};
  return config.wrong("rope_theta", "is missing: state it");
}

TargetConfig target_of(DenseConfig dense) {
  TargetConfig target;
  target.decoder = std::move(dense.decoder);
  target.max_positions = dense.max_positions;
  return target;
}

model::Attention& attention_of(model::Layer& layer) {
  return std::get<model::Attention>(layer.mixer);
}

Status read_attention_bias(const ConfigFields& config, std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  for (model::Layer& layer : layers) attention_of(layer).bias = attention_of(layer).o_bias = bias;
  return {};
}

Status read_head_norms(const ConfigFields& config, std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const bool norms, config.boolean("use_qk_norm", true));
  if (!norms) return config.unbuilt("use_qk_norm", "is false, which is not built for this architecture");
  for (model::Layer& layer : layers) attention_of(layer).qk_norm = true;
  return {};
}

Status read_windows(const ConfigFields& config, std::vector<model::Layer>& layers, std::optional<int32_t> window) {
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, layers.size()));
  VOLLEY_ASSIGN(const bool windows, config.boolean("use_sliding_window", !types.empty()));
  VOLLEY_ASSIGN(const int32_t first, config.integer("max_window_layers", 0, INT32_MAX, kFirstWindowLayer));
  const bool has_window = config.has("sliding_window") || window;
  // transformers has a default of its own for an absent field; null is a statement.
  if (windows && types.empty() && !window && !config.json().contains("sliding_window")) {
    return config.wrong("sliding_window", "is missing beside \"use_sliding_window\": state it, or null for none");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool derived = windows && has_window && i >= static_cast<size_t>(first);
    const std::string type = !types.empty() ? types[i] : derived ? "sliding_attention" : "full_attention";
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      return config.unbuilt("layer_types",
                            "has \"" + type + "\", which is not built; built are full_attention and sliding_attention");
    }
    if (!windows) return config.wrong("use_sliding_window", "is false, but layer_types has sliding_attention");
    VOLLEY_ASSIGN(attention_of(layers[i]).window, config.integer("sliding_window", 1, kMaxWindow, window));
    if (window) attention_of(layers[i]).window = *window;
  }
  return {};
}

Status check_layer_types(const ConfigFields& config, const std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, layers.size()));
  for (size_t i = 0; i < types.size(); ++i) {
    const int32_t window = std::get<model::Attention>(layers[i].mixer).window;
    if (types[i] == (window > 0 ? "sliding_attention" : "full_attention")) continue;
    return config.wrong("layer_types",
                        "has \"" + types[i] + "\", which contradicts " +
                            (window > 0 ? "the window of \"sliding_window\"" : "that there is no window") +
                            ": one window for all layers, or none, is what this architecture has");
  }
  return {};
}

Result<model::Experts> read_experts(const ConfigFields& config, bool renormalise, std::optional<int32_t> inner) {
  model::Experts experts;
  ops::RouterRule& rule = experts.router;
  const char* count = "num_experts";  // transformers 5 accepts any name of the number
  for (const char* other : {"num_local_experts", "n_routed_experts"}) {
    if (config.has(other) && !config.has(count)) count = other;
  }
  VOLLEY_ASSIGN(rule.experts, config.integer(count, 1, kMaxWidth));
  VOLLEY_ASSIGN(rule.top_k, config.integer("num_experts_per_tok", 1, kMaxWidth));
  VOLLEY_ASSIGN(rule.renormalise, config.boolean("norm_topk_prob", renormalise));
  VOLLEY_ASSIGN(experts.inner, config.integer("moe_intermediate_size", 1, kMaxWidth, inner));
  if (const Status status = ops::check_router(rule); !status.ok()) {
    return Error{status.error().code, config.where() + ": " + status.error().message};
  }
  return experts;
}

Status read_sparse_layers(const ConfigFields& config, const model::Experts& experts,
                          std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const int32_t step, config.integer("decoder_sparse_step", 1, kMaxSparseStep, 1));
  VOLLEY_ASSIGN(const std::vector<int32_t> dense_layers, config.integers("mlp_only_layers", 0, kMaxLayers));
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_dense = std::find(dense_layers.begin(), dense_layers.end(), i) != dense_layers.end();
    if (!is_dense && (i + 1) % static_cast<size_t>(step) == 0) layers[i].ffn = experts;
  }
  return {};
}

void add_expert_stacks(const model::Experts& experts, weights::NameRules& names) {
  const std::vector<std::string> one = {"gate_up_proj.weight"}, two = {"gate_proj.weight", "up_proj.weight"};
  const std::vector<std::string>&gate_up = experts.transposed ? one : two, down = {"down_proj.weight"};
  const int64_t count = experts.router.experts;
  names.stacks.push_back({"mlp.experts.", "gate_up_proj", gate_up, count});
  names.stacks.push_back({"mlp.experts.", "down_proj", down, count});
}

Status check_windows(const model::Decoder& decoder, const std::string& where) {
  int32_t window = 0;
  for (const model::Layer& layer : decoder.layers) {
    const std::optional<model::KvFacts> kv = layer.mixer_facts().kv;
    if (!kv || kv->window == 0) continue;
    if (window != 0 && kv->window != window) {
      return unimplemented(where + ": layers have sliding windows of " + std::to_string(window) + " and " +
                           std::to_string(kv->window) + ", but one size for all of them is what is built.");
    }
    window = kv->window;
  }
  return {};
}

Result<std::vector<std::string>> read_layer_types(const ConfigFields& config, size_t layers) {
  VOLLEY_ASSIGN(std::vector<std::string> types, config.texts("layer_types"));
  if (config.has("layer_types") && types.size() != layers) {
    return config.wrong("layer_types", "has " + std::to_string(types.size()) + " entries for the " +
                                           std::to_string(layers) + " of num_hidden_layers");
  }
  return types;
}

}  // namespace volley::families
