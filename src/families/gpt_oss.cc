// gpt-oss: attention with sinks and biases, a window in every other layer, and in each layer a mixture of experts with
// biases and a clamped activation.
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

// Defaults as in transformers.
constexpr int32_t kWindow = 128;
constexpr double kLimit = 7.0;
// Factor of the gate inside the sigmoid.
constexpr double kAlpha = 1.702;

// Fields for which transformers has defaults of this family's own.
Status check_stated(const ConfigFields& config) {
  for (const char* key : {"head_dim", "num_key_value_heads", "rms_norm_eps"}) {
    if (!config.has(key)) return config.wrong(key, "is missing: state it");
  }
  VOLLEY_ASSIGN(const std::optional<ConfigFields> parameters, config.object("rope_parameters"));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> scaling, config.object("rope_scaling"));
  if (!parameters && !scaling) return config.wrong("rope_scaling", "is missing: state it, or rope_parameters");
  return check_theta_stated(config);
}

Status read_layers(const ConfigFields& config, std::vector<model::Layer>& layers) {
  if (config.json().contains("sliding_window") && !config.has("sliding_window")) {
    return config.wrong("sliding_window", "is null: state the size of the window");
  }
  VOLLEY_ASSIGN(const int32_t window, config.integer("sliding_window", 1, kMaxWindow, kWindow));
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", true));
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, layers.size()));
  for (size_t i = 0; i < layers.size(); ++i) {
    model::Attention& attention = attention_of(layers[i]);
    attention.bias = attention.o_bias = bias;
    attention.sinks = true;
    const std::string type = !types.empty() ? types[i] : i % 2 == 0 ? "sliding_attention" : "full_attention";
    if (type == "sliding_attention") {
      attention.window = window;
    } else if (type != "full_attention") {
      return config.unbuilt("layer_types",
                            "has \"" + type + "\", which is not built; built are full_attention and sliding_attention");
    }
  }
  return {};
}

Result<model::Experts> read_own_experts(const ConfigFields& config) {
  VOLLEY_ASSIGN(const int32_t inner, config.integer("intermediate_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, true, inner));
  VOLLEY_ASSIGN(const int32_t top_k, config.integer("experts_per_token", 1, kMaxWidth, experts.router.top_k));
  if (top_k != experts.router.top_k) return config.wrong("experts_per_token", "contradicts \"num_experts_per_tok\"");
  VOLLEY_ASSIGN(const double limit, config.number("swiglu_limit", kFactor, kLimit));
  VOLLEY_ASSIGN(const double alpha, config.number("swiglu_alpha", kFactor, kAlpha));
  experts.bias = true;
  // The field is not the makers': it says that the files hold gate and up apart, as GGUF files do.
  VOLLEY_ASSIGN(experts.interleaved, config.boolean("interleaved_experts", true));
  experts.transposed = experts.interleaved;
  experts.clamp = {static_cast<float>(alpha), static_cast<float>(limit)};
  return experts;
}

}  // namespace

Result<TargetConfig> read_gpt_oss(const ConfigFields& config) {
  VOLLEY_RETURN_IF_ERROR(check_stated(config));
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "gpt_oss"));
  VOLLEY_RETURN_IF_ERROR(read_layers(config, dense.decoder.layers));
  VOLLEY_ASSIGN(const model::Experts experts, read_own_experts(config));
  for (model::Layer& layer : dense.decoder.layers) layer.ffn = experts;
  config.has("initial_context_length");  // the same as original_max_position_embeddings of rope_scaling
  TargetConfig target = target_of(std::move(dense));
  const int64_t count = experts.router.experts;
  target.names.inner.push_back({"mlp.gate.", "mlp.router."});
  target.names.stacks.push_back({"mlp.experts.", "gate_up_proj", {"gate_up_proj.weight"}, count});
  target.names.stacks.push_back({"mlp.experts.", "down_proj", {"down_proj.weight"}, count});
  return target;
}

}  // namespace volley::families
