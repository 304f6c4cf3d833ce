#include "gguf/architecture.h"

#include <algorithm>

namespace volley::gguf {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "gemma3", .hugging_face = "Gemma3ForCausalLM", .norms_hold_one = true},
    {.name = "llama", .hugging_face = "LlamaForCausalLM", .pairs_rows = true},
    {.name = "qwen2", .hugging_face = "Qwen2ForCausalLM"},
    {.name = "qwen3", .hugging_face = "Qwen3ForCausalLM"},
    {.name = "qwen3moe", .hugging_face = "Qwen3MoeForCausalLM"},
};

struct Name {
  std::string_view stored, hugging_face;
};
constexpr Name kModelNames[] = {
    {"token_embd.", "model.embed_tokens."},
    {"output_norm.", "model.norm."},
    {"output.", "lm_head."},
    {"rope_freqs.weight", "model.rotary_emb.freqs"},  // config.json says it in words
};
constexpr Name kLayerNames[] = {
    {"attn_norm.", "input_layernorm."},
    {"attn_q.", "self_attn.q_proj."},
    {"attn_k.", "self_attn.k_proj."},
    {"attn_v.", "self_attn.v_proj."},
    {"attn_output.", "self_attn.o_proj."},
    {"attn_q_norm.", "self_attn.q_norm."},
    {"attn_k_norm.", "self_attn.k_norm."},
    {"ffn_norm.", "post_attention_layernorm."},
    {"ffn_gate.", "mlp.gate_proj."},
    {"ffn_up.", "mlp.up_proj."},
    {"ffn_down.", "mlp.down_proj."},
    {"ffn_gate_inp.", "mlp.gate."},
    {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.*.up_proj."},
    {"ffn_down_exps.", "mlp.experts.*.down_proj."},
};
// Architectures with norms before and after both blocks.
constexpr Name kGemmaNames[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"ffn_norm.", "pre_feedforward_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."},
};

template <size_t N>
std::string renamed(const Name (&names)[N], std::string_view stored) {
  for (const Name& name : names) {
    if (stored.starts_with(name.stored)) {
      return std::string(name.hugging_face) + std::string(stored.substr(name.stored.size()));
    }
  }
  return "";
}

}  // namespace

Result<const Architecture*> architecture_of(const File& file) {
  const std::string& path = file.path();
  const std::string name = file.header().text("general.architecture").value_or("");
  const std::string kind = file.header().text("general.type").value_or("model");
  if (name.empty()) return data_loss(path + " does not say its general.architecture: it is damaged, or no model.");
  if (name == "clip" || kind == "mmproj") {
    return unimplemented(path +
                         " is a vision projector (mmproj), which is not built: name the GGUF file of the language "
                         "model that it came with.");
  }
  if (kind != "model") {
    return unimplemented(path + " holds something of the type \"" + kind +
                         "\", no model: name the GGUF file of a whole model.");
  }
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (found != std::end(kArchitectures)) return found;
  std::string built;
  for (const Architecture& architecture : kArchitectures) {
    built += (built.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return unimplemented(path + " holds a model of the architecture \"" + name +
                       "\", which is not built for GGUF files; built are: " + built +
                       ". Use the model's checkpoint in safetensors.");
}

std::string hugging_face_name(const Architecture& architecture, std::string_view stored) {
  constexpr std::string_view kBlock = "blk.";
  std::string name;
  if (!stored.starts_with(kBlock)) {
    name = renamed(kModelNames, stored);
  } else if (const size_t dot = stored.find('.', kBlock.size()); dot != std::string_view::npos) {
    const std::string_view rest = stored.substr(dot + 1);
    if (architecture.norms_hold_one) name = renamed(kGemmaNames, rest);
    if (name.empty()) name = renamed(kLayerNames, rest);
    if (!name.empty()) {
      name.insert(0, "model.layers." + std::string(stored.substr(kBlock.size(), dot - kBlock.size())) + ".");
    }
  }
  return name.empty() ? std::string(stored) : name;
}

}  // namespace volley::gguf
