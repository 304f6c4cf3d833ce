#include "gguf/architecture.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace volley::gguf {
namespace {

constexpr Name kModelNames[] = {
    {"token_embd.", "model.embed_tokens."},
    {"output_norm.", "model.norm."},
    {"output.", "lm_head."},
    {"rope_freqs.weight", "model.rotary_emb.freqs"},  // config.json says it in words
    {"enc.output_norm.", "hidden_norm."},             // this and the next are a drafter's
    {"selector_hidden.", "candidate_selector.hidden_projection."},
    {"selector_predecessor.weight", "candidate_selector.predecessor_codebook"},
    {"selector_successor.weight", "candidate_selector.successor_codebook"},
    {"markov_w", "markov_head.markov_w"},
    {"conf_proj.", "confidence_head.proj."},
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
    {"ffn_gate_up_exps.", "mlp.experts.*.gate_up_proj."},
    {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate."},
    {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_expert.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_expert.down_proj."},
};
// What beginnings of names stand for in one architecture only, or in a few.
constexpr Name kGemmaNames[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"ffn_norm.", "pre_feedforward_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."},
    {"layer_output_scale.weight", "layer_scalar"},  // this and the rest are Gemma 4's
    {"pre_ffw_norm_2.", "pre_feedforward_layernorm_2."},
    {"post_ffw_norm_1.", "post_feedforward_layernorm_1."},
    {"post_ffw_norm_2.", "post_feedforward_layernorm_2."},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_up_exps.", "experts.*.gate_up_proj."},
    {"ffn_down_exps.", "experts.*.down_proj."},
};
constexpr Name kLatentNames[] = {
    {"attn_q_a.", "self_attn.q_a_proj."},
    {"attn_q_a_norm.", "self_attn.q_a_layernorm."},
    {"attn_q_b.", "self_attn.q_b_proj."},
    {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."},
    {"attn_kv_a_norm.", "self_attn.kv_a_layernorm."},
    {"attn_kv_b.", "self_attn.kv_b_proj."},
    {"attn_k_b.", "self_attn.k_b_proj."},  // this and the next are kv_b_proj in newer files
    {"attn_v_b.", "self_attn.v_b_proj."},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_experts.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_experts.down_proj."},
    {"nextn.eh_proj.", "eh_proj."},  // this and the next are of the layer that drafts
    {"nextn.enorm.", "enorm."},
    {"nextn.hnorm.", "hnorm."},
    {"nextn.shared_head_norm.", "shared_head.norm."},
    {"nextn.shared_head_head.", "shared_head.head."},
    {"nextn.embed_tokens.", "embed_tokens."},
};
constexpr Name kDFlashNames[] = {
    {"attn_conv_base", "attention_conv.base_kernel"},
    {"attn_conv_proj.", "attention_conv.kernel_projection."},
    {"ffn_conv_base", "mlp_conv.base_kernel"},
    {"ffn_conv_proj.", "mlp_conv.kernel_projection."},
};
constexpr Name kGptOssNames[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_gate_inp.", "mlp.router."},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
};
constexpr Name kHybridNames[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"attn_qkv.", "linear_attn.in_proj_qkv."},
    {"attn_gate.", "linear_attn.in_proj_z."},
    {"ssm_beta.", "linear_attn.in_proj_b."},
    {"ssm_alpha.", "linear_attn.in_proj_a."},
    {"ssm_ba.", "linear_attn.in_proj_ba."},
    {"ssm_conv1d.", "linear_attn.conv1d."},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_norm.", "linear_attn.norm."},
    {"ssm_out.", "linear_attn.out_proj."},
};
// Names in the layers behind the last one, which draft.
constexpr Name kMtpNames[] = {
    {"nextn.eh_proj.", "mtp.fc."},
    {"nextn.enorm.", "mtp.pre_fc_norm_embedding."},
    {"nextn.hnorm.", "mtp.pre_fc_norm_hidden."},
    {"nextn.shared_head_norm.", "mtp.norm."},
};

std::string renamed(std::span<const Name> names, std::string_view stored) {
  for (const Name& name : names) {
    if (stored.starts_with(name.stored)) {
      return std::string(name.hugging_face) + std::string(stored.substr(name.stored.size()));
    }
  }
  return "";
}

std::string renamed(const File& file, const Architecture& architecture, std::string_view stored) {
  constexpr std::string_view kBlock = "blk.";
  if (!stored.starts_with(kBlock)) return renamed(kModelNames, stored);
  const size_t dot = stored.find('.', kBlock.size());
  if (dot == std::string_view::npos) return "";
  const std::string_view digits = stored.substr(kBlock.size(), dot - kBlock.size()), rest = stored.substr(dot + 1);
  int64_t layer = 0;
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || at != digits.data() + digits.size()) return "";
  const int64_t layers = architecture.drafts_as_layer ? INT64_MAX : layers_of(file);
  if (std::string name = layer < layers ? "" : renamed(kMtpNames, rest); !name.empty()) return name;
  std::string name = renamed(architecture.layer_names, rest);
  if (name.empty()) name = renamed(kLayerNames, rest);
  if (name.empty()) return "";
  return (layer < layers ? "model.layers." + std::to_string(layer) : "mtp.layers." + std::to_string(layer - layers)) +
         "." + name;
}

// A number of the architecture, as a size; 0 if it is missing or none.
int64_t size_of(const File& file, const std::string& key) {
  constexpr double kMost = 1 << 24;
  const double value =
      file.header().number(file.header().text("general.architecture").value_or("") + "." + key).value_or(0);
  return value >= 1 && value <= kMost ? static_cast<int64_t>(value) : 0;
}

// In each head, rows that rotate together lie side by side.
void pair_rows(const File& file, std::vector<Place>& places) {
  Place& place = places[0];
  const bool is_q = place.name.find("self_attn.q_proj.") != std::string::npos;
  if (!is_q && place.name.find("self_attn.k_proj.") == std::string::npos) return;
  const int64_t of_q = size_of(file, "attention.head_count"), of_kv = size_of(file, "attention.head_count_kv");
  const int64_t heads = is_q || of_kv == 0 ? of_q : of_kv, rows = place.shape[0];
  place.rows = {0, 2, heads > 0 && rows % (2 * heads) == 0 ? rows / heads / 2 : 0, 1};
}

void arrange_hybrid(const File&, std::vector<Place>& places) {
  Place& place = places[0];
  if (place.name.ends_with("linear_attn.A_log")) place.change = Change::kMinusExp;
  if (place.name.ends_with("linear_attn.conv1d.weight")) place.shape.insert(place.shape.begin() + 1, 1);
  if (place.name.ends_with("mlp.shared_expert_gate.weight")) place.shape.insert(place.shape.begin(), 1);
}

// Qwen3-Next: a key head brings its rows of beta and alpha. With those of q, k, v and z apart, the model is one of
// Qwen3.5 with experts, apart from the order of its heads.
void arrange_qwen3_next(const File& file, std::vector<Place>& places) {
  arrange_hybrid(file, places);
  constexpr std::string_view kBoth = "in_proj_ba.";
  const size_t at = places[0].name.find(kBoth);
  if (at == std::string::npos) return;
  const int64_t k_heads = size_of(file, "ssm.group_count"), v_heads = size_of(file, "ssm.time_step_rank");
  Place both = places[0];
  both.rows = {0, 2, k_heads, k_heads > 0 ? v_heads / k_heads : 0};
  both.shape[0] /= 2;
  places = {both, both};
  places[0].name.replace(at, kBoth.size(), "in_proj_b.");
  places[1].name.replace(at, kBoth.size(), "in_proj_a.");
  places[1].first_row = both.shape[0];
}

// Qwen3.5: value heads are ordered by their number within the key head, then by key head.
void arrange_qwen3_5(const File& file, std::vector<Place>& places) {
  arrange_hybrid(file, places);
  Place& place = places[0];
  const size_t at = place.name.find("linear_attn.");
  if (at == std::string::npos) return;
  const std::string_view what = std::string_view(place.name).substr(at + std::strlen("linear_attn."));
  const int64_t k_heads = size_of(file, "ssm.group_count"), v_heads = size_of(file, "ssm.time_step_rank");
  const int64_t keys = 2 * k_heads * size_of(file, "ssm.state_size");  // rows of q and k
  Order heads = {0, k_heads, k_heads > 0 ? v_heads / k_heads : 0, 1};
  if (what == "A_log" || what == "dt_bias" || what == "in_proj_a.weight" || what == "in_proj_b.weight") {
    place.rows = heads;
    return;
  }
  heads.c = v_heads > 0 ? size_of(file, "ssm.inner_size") / v_heads : 0;
  if (what == "in_proj_z.weight") place.rows = heads;
  if (what == "out_proj.weight") place.columns = heads;
  if (what == "in_proj_qkv.weight" || what == "conv1d.weight") {
    place.rows = heads;
    place.rows.kept = keys;
  }
}

constexpr Architecture kArchitectures[] = {
    {.name = "deepseek2",
     .hugging_face = "DeepseekV3ForCausalLM",
     .layer_names = kLatentNames,
     .drafts_as_layer = true},
    {.name = "dflash", .hugging_face = "DFlashDraftModel", .layer_names = kDFlashNames},
    {.name = "gemma3", .hugging_face = "Gemma3ForCausalLM", .layer_names = kGemmaNames, .norms_hold_one = true},
    {.name = "gemma4", .hugging_face = "Gemma4ForCausalLM", .layer_names = kGemmaNames},
    {.name = "gpt-oss", .hugging_face = "GptOssForCausalLM", .layer_names = kGptOssNames},
    {.name = "llama", .hugging_face = "LlamaForCausalLM", .arrange = pair_rows},
    {.name = "qwen2", .hugging_face = "Qwen2ForCausalLM"},
    {.name = "qwen3", .hugging_face = "Qwen3ForCausalLM"},
    {.name = "qwen35",
     .hugging_face = "Qwen3_5ForCausalLM",
     .layer_names = kHybridNames,
     .norms_hold_one = true,
     .arrange = arrange_qwen3_5},
    {.name = "qwen35moe",
     .hugging_face = "Qwen3_5MoeForCausalLM",
     .layer_names = kHybridNames,
     .norms_hold_one = true,
     .arrange = arrange_qwen3_5},
    {.name = "qwen3moe", .hugging_face = "Qwen3MoeForCausalLM"},
    {.name = "qwen3next",
     .hugging_face = "Qwen3_5MoeForCausalLM",
     .layer_names = kHybridNames,
     .norms_hold_one = true,
     .arrange = arrange_qwen3_next},
};

// Whether the converter added 1 to a norm's weight: to all but those of linear attention's gate.
bool holds_one(const std::string& name) {
  if (name.find(".pre_fc_norm_") != std::string::npos) return true;
  return name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
}

// Experts are one tensor, whose name has a '*' for the expert's number; gate and up of an expert may be one, too.
std::vector<Place> by_expert(const Place& all) {
  const size_t star = all.name.find('*');
  if (star == std::string::npos || all.shape.size() != 3) return {all};
  const std::string folder = all.name.substr(0, star), rest = all.name.substr(star + 1);
  const std::vector<std::string> parts = rest == ".gate_up_proj.weight"
                                             ? std::vector<std::string>{".gate_proj.weight", ".up_proj.weight"}
                                             : std::vector<std::string>{rest};
  const auto count = static_cast<uint64_t>(all.shape[0]) * parts.size();
  Place place = all;
  place.shape = {all.shape[1] / std::ssize(parts), all.shape[2]};
  std::vector<Place> places;
  for (uint64_t i = 0; i < count; ++i) {
    place.name = folder + std::to_string(i / parts.size()) + parts[i % parts.size()];
    place.begin = all.begin + i * ((all.end - all.begin) / count);
    place.end = place.begin + (all.end - all.begin) / count;
    places.push_back(place);
  }
  return places;
}

// Whether the order is one of `count` rows.
bool orders(const Order& order, int64_t count) {
  if (order.kept < 0 || order.kept > count || order.a < 1 || order.b < 1 || order.c < 1) return false;
  const int64_t rest = count - order.kept;
  return order.a <= rest && order.b <= rest && order.c <= rest && rest % order.a == 0 &&
         rest / order.a % order.b == 0 && rest / order.a / order.b % order.c == 0;
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

int64_t layers_of(const File& file) {
  return size_of(file, "block_count") - size_of(file, "nextn_predict_layers");
}

int64_t Order::operator()(int64_t at) const {
  if (at < kept || is_plain()) return at;
  const int64_t run = a * b * c, within = (at - kept) % run, k = within % c, ij = within / c;
  return at - within + (ij % b * a + ij / b) * c + k;
}

Result<std::vector<Place>> places_of(const File& file, const Architecture& architecture, const Tensor& tensor) {
  std::string name = renamed(file, architecture, tensor.name);
  if (name.empty()) name = tensor.name;
  std::vector<Place> places = {{name, tensor.shape, tensor.begin, tensor.end}};
  if (architecture.norms_hold_one && holds_one(name)) places[0].change = Change::kPlusOne;
  if (architecture.arrange != nullptr) architecture.arrange(file, places);
  for (const Place& place : places) {
    if (orders(place.rows, tensor.shape.front()) && orders(place.columns, tensor.shape.back())) continue;
    return data_loss(file.path() + ": the tensor \"" + tensor.name +
                     "\" has no rows or columns for the heads that the metadata name: the file is damaged.");
  }
  constexpr int64_t kMaxExperts = 1 << 14;
  if (tensor.shape.size() == 3 && tensor.shape[0] > kMaxExperts) {
    return data_loss(file.path() + ": the tensor \"" + tensor.name + "\" is of " + std::to_string(tensor.shape[0]) +
                     " experts: the file is damaged.");
  }
  return places.size() > 1 ? places : by_expert(places[0]);
}

}  // namespace volley::gguf
