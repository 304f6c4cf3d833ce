// The parts of config.json that nearly every family words alike.
#pragma once

#include <functional>

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// Bounds that no model comes near, so that products of two fit into an int64.
inline constexpr int32_t kMaxWidth = 1 << 20;
inline constexpr int32_t kMaxLayers = 1 << 12;
// Bounds a sliding window, which is added to positions.
inline constexpr int32_t kMaxWindow = 1 << 24;
inline constexpr NumberRange kFactor = {.min = 0, .max = 1e6, .min_excluded = true};

// A decoder of equal layers with grouped-query attention and a dense gated network: sizes, heads, norm, rotary
// embedding and ties. Every layer is full and causal, without norms of heads and biases; a family sets its own
// additions.
struct DenseConfig {
  model::Decoder decoder;
  int32_t max_positions = 0;
};
// The points in which families differ.
struct DenseRules {
  std::optional<double> partial_rotary;  // read_rope()'s `partial`
  std::optional<int32_t> inner;          // "intermediate_size" where the file need not say it
  std::string activation = "silu";       // "hidden_act"; or "gelu_pytorch_tanh"
  // The size of a head where other fields give it, which files may repeat as "head_dim".
  std::optional<int32_t> head_dim = {};
};
Result<DenseConfig> read_dense(const ConfigFields& config, const std::string& family, const DenseRules& rules = {});

// Whether kernels take heads of that size. key: the field that says it.
Status check_head_dim(const ConfigFields& config, const char* key, int32_t head_dim);

// The decoder of a checkpoint that also has vision, as Qwen's are: its fields lie in "text_config", and its pictures'
// rows may bring vectors for some layers (DeepStack). Without that object all of the file is the decoder.
using ReadText = std::function<Result<TargetConfig>(const ConfigFields& text)>;
Result<TargetConfig> read_text_part(const ConfigFields& config, const ReadText& read);

// Reads a decoder whose fields, as `stated` says them, were put into the words of other families.
Result<TargetConfig> read_translated(const ConfigFields& stated, const nlohmann::json& fields, const ReadText& read);

// Reads Decoder::tower from that file, or says in `target` why it is not built.
void read_tower(const ConfigFields& config, const ConfigFields& vision, TargetConfig& target);
// The rest of its rules: DIR/preprocessor_config.json, or the defaults of transformers.
Status read_picture_rules(const std::string& dir, PictureRules& rules);
// Reads what a file says beside its decoder's object `text`, where the checkpoint's names begin with "language_model."
// and it also has vision or sound. unread: more fields that say nothing about the decoder.
Status read_beside_text(const ConfigFields& config, const ConfigFields& text, std::initializer_list<const char*> unread,
                        TargetConfig& target);

// kInvalidArgument without "rope_theta", for families for which transformers has a default of its own.
Status check_theta_stated(const ConfigFields& config);

// A target with that decoder.
TargetConfig target_of(DenseConfig dense);

model::Attention& attention_of(model::Layer& layer);

// "layer_types": one entry a layer, or an empty list if the file has none.
Result<std::vector<std::string>> read_layer_types(const ConfigFields& config, size_t layers);

// "attention_bias": of q, k, v and the output projection.
Status read_attention_bias(const ConfigFields& config, std::vector<model::Layer>& layers);
// Norms of every head of q and k; "use_qk_norm" may not switch them off.
Status read_head_norms(const ConfigFields& config, std::vector<model::Layer>& layers);
// Which layers have a mixture of experts, for families whose files say so: every "decoder_sparse_step"th layer that
// "mlp_only_layers" does not list.
Status read_sparse_layers(const ConfigFields& config, const model::Experts& experts, std::vector<model::Layer>& layers);
// The number, choice and inner width of experts. renormalise: the default of "norm_topk_prob". inner: the default of
// "moe_intermediate_size", where the family has one.
Result<model::Experts> read_experts(const ConfigFields& config, bool renormalise, std::optional<int32_t> inner = {});
// Newer files hold all experts of a layer as one tensor.
void add_expert_stacks(const model::Experts& experts, weights::NameRules& names);

// Sliding windows from "layer_types", or without them as transformers derives them: where "use_sliding_window" is true,
// the layers from "max_window_layers" on. window: the windows' size, if another field than "sliding_window" gives it.
Status read_windows(const ConfigFields& config, std::vector<model::Layer>& layers, std::optional<int32_t> window = {});

// "layer_types" of a family whose layers all have one window, or none: kInvalidArgument where they contradict the
// layers.
Status check_layer_types(const ConfigFields& config, const std::vector<model::Layer>& layers);

// kUnimplemented where windows differ, because the rows of a pass have one window size. where: the file.
Status check_windows(const model::Decoder& decoder, const std::string& where);

}  // namespace volley::families
