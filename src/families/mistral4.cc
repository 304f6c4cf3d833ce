// Mistral Small 4: latent attention, whose q grows with the position, and experts with softmax scores in every layer.
#include <cmath>
#include <nlohmann/json.hpp>

#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {
namespace {

Result<TargetConfig> read_text(const ConfigFields& text) {
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(text, "mistral4"));
  VOLLEY_ASSIGN(const model::Experts experts, read_shared_experts(text, true));
  VOLLEY_ASSIGN(const int32_t groups, text.integer("n_group", 1, kMaxWidth, 1));
  VOLLEY_ASSIGN(const int32_t kept, text.integer("topk_group", 1, kMaxWidth, 1));
  if (groups != kept) return text.unbuilt("topk_group", "is not n_group: groups of softmax scores are not built");
  VOLLEY_ASSIGN(const int32_t first, text.integer("first_k_dense_replace", 0, kMaxLayers, 0));
  return target_with_experts(std::move(dense), experts, first);
}

// The number of a field; 0 if it is missing or something else, which its reader says.
double number_of(const nlohmann::json& fields, const char* key) {
  const auto field = fields.find(key);
  return field != fields.end() && field->is_number() ? field->get<double>() : 0.0;
}

}  // namespace

Result<TargetConfig> read_mistral4(const ConfigFields& config) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> inner, config.object("text_config"));
  const ConfigFields& stated = inner ? *inner : config;
  if (inner) {
    VOLLEY_ASSIGN(const std::string type, inner->text("model_type", "mistral4"));
    if (type != "mistral4") return inner->unbuilt("model_type", "is \"" + type + "\", which is not built; mistral4 is");
  }
  nlohmann::json fields = stated.json();
  // These repeat the sizes of heads and the longest context.
  const double rope = number_of(fields, "qk_rope_head_dim"), nope = number_of(fields, "qk_nope_head_dim");
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!fields.contains(name) || !fields[name].is_object()) continue;
    nlohmann::json& rotation = fields[name];
    if (std::abs(number_of(rotation, "partial_rotary_factor") - rope / (rope + nope)) < 1e-6) {
      rotation.erase("partial_rotary_factor");
    }
    if (number_of(rotation, "max_position_embeddings") == number_of(fields, "max_position_embeddings")) {
      rotation.erase("max_position_embeddings");
    }
  }
  if (number_of(fields, "head_dim") == rope + nope) fields.erase("head_dim");
  VOLLEY_ASSIGN(TargetConfig target, read_translated(stated, fields, read_text));
  if (inner) {
    VOLLEY_RETURN_IF_ERROR(
        read_beside_text(config, stated,
                         {"image_token_index", "image_token_id", "spatial_merge_size", "multimodal_projector_bias",
                          "projector_hidden_act", "vision_feature_layer"},
                         target));
  }
  return target;
}

}  // namespace volley::families
