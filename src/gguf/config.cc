#include "gguf/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "base/file.h"
#include "gguf/architecture.h"

namespace volley::gguf {
namespace {

using nlohmann::json;

// Keeps whole numbers whole.
json number_json(double value) {
  constexpr double kMost = 9007199254740992.0;  // 2^53
  if (value >= 0 && value <= kMost && value == std::floor(value)) return static_cast<uint64_t>(value);
  return value;
}

// Values of the architecture. The first that is missing is the error.
class Values {
 public:
  Values(const File& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::optional<double> number(const std::string& key) {
    read_.insert(prefix_ + key);
    const std::vector<double> list = file_.header().numbers(prefix_ + key);
    if (list.empty()) return std::nullopt;
    if (std::ranges::count(list, list.front()) != static_cast<std::ptrdiff_t>(list.size())) fail(varies(key));
    return list.front();
  }
  double needed(const std::string& key) {
    const std::optional<double> value = number(key);
    if (!value) fail(missing(key));
    return value.value_or(0);
  }
  Error missing(const std::string& key) const {
    return data_loss(file_.path() + " has no number \"" + prefix_ + key +
                     "\", or not one for each layer: it is damaged.");
  }
  Error varies(const std::string& key) const {
    return unimplemented(file_.path() + ": \"" + prefix_ + key + "\" differs between layers, which is not built.");
  }
  bool boolean(const std::string& key, bool fallback) {
    read_.insert(prefix_ + key);
    return file_.header().boolean(prefix_ + key).value_or(fallback);
  }
  // Refuses another value than that of models which have no such field.
  void only(const std::string& key, double built) {
    if (number(key).value_or(built) != built) {
      fail(unimplemented(file_.path() + ": another \"" + prefix_ + key + "\" than " + std::to_string(built) +
                         " is not built."));
    }
  }
  std::string text(const std::string& key) {
    read_.insert(prefix_ + key);
    return file_.header().text(prefix_ + key).value_or("");
  }
  std::vector<double> numbers(const std::string& key) {
    read_.insert(prefix_ + key);
    return file_.header().numbers(prefix_ + key);
  }
  std::vector<bool> booleans(const std::string& key) {
    read_.insert(prefix_ + key);
    return file_.header().booleans(prefix_ + key);
  }
  // Whether the metadata have the key.
  bool has(const std::string& key) const {
    const std::vector<std::string> keys = file_.header().keys();
    return std::ranges::find(keys, prefix_ + key) != keys.end();
  }
  void ignore(const std::string& key) { read_.insert(prefix_ + key); }
  const File& file() const { return file_; }
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  // The first error, or else an unread value of the architecture that is not 0 or false.
  Status finish() const {
    if (error_) return *error_;
    for (const std::string& key : file_.header().keys()) {
      const bool is_zero = file_.header().number(key) == 0 || file_.header().boolean(key) == false;
      if (!key.starts_with(prefix_) || read_.contains(key) || is_zero) continue;
      return unimplemented(file_.path() + ": \"" + key +
                           "\" is not built, and without it results would differ from those of the model's makers.");
    }
    return {};
  }

 private:
  const File& file_;
  const std::string prefix_;
  std::set<std::string, std::less<>> read_;
  std::optional<Error> error_;
};

// The divisors of frequencies ("rope_freqs.weight") as the fields of config.json that give them: those of Llama 3.1,
// whose models differ only in the factor, or Gemma 4's, where the first pairs turn and the others do not.
Status read_divisors(const File& file, json& config) {
  constexpr double kLow = 1, kHigh = 4, kLength = 8192, kTolerance = 1e-3;
  const Tensor& tensor = *file.tensor("rope_freqs.weight");
  const Error unknown = unimplemented(file.path() +
                                      ": \"rope_freqs.weight\" stretches the rotary embedding in a way that is not "
                                      "built; built are those of Llama 3.1 and Gemma 4.");
  const bool turns_in_part = config.contains("global_head_dim");
  const double dim = config[turns_in_part ? "global_head_dim" : "head_dim"].get<double>();
  const auto theta = config["rope_theta"].get<double>();
  const uint64_t count = (tensor.end - tensor.begin) / sizeof(float);
  if (tensor.type != TensorType::kF32 || static_cast<double>(2 * count) != dim) return unknown;
  const auto holds = [&](const File::Part& part) {
    return std::ranges::any_of(part.header.tensors(), [&](const Tensor& t) { return &t == &tensor; });
  };
  const std::string& path = std::ranges::find_if(file.parts, holds)->path;
  VOLLEY_ASSIGN(const OpenFile opened, open_regular_file(path));
  std::vector<float> divisors(count);
  VOLLEY_ASSIGN(const size_t got, read_at(opened, tensor.begin, divisors.data(), count * sizeof(float), path));
  if (got != count * sizeof(float)) return data_loss(path + " was cut short while it was read: start again.");
  if (turns_in_part) {
    constexpr float kStill = 1e20f;
    const auto still = std::ranges::find_if(divisors, [](float divisor) { return divisor != 1; });
    if (std::any_of(still, divisors.end(), [](float divisor) { return !(divisor >= kStill); })) return unknown;
    config["rope_parameters"]["full_attention"] = {
        {"rope_type", "proportional"},
        {"rope_theta", theta},
        {"partial_rotary_factor", static_cast<double>(still - divisors.begin()) / static_cast<double>(count)}};
    config.erase("rope_theta");
    return {};
  }
  const double factor = *std::ranges::max_element(divisors);
  for (size_t i = 0; i < count; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, 2 * static_cast<double>(i) / dim);
    const double smooth = std::clamp((kLength / wave - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double divisor = 1 / ((1 - smooth) / factor + smooth);
    if (!(std::abs(divisors[i] - divisor) <= kTolerance * divisor)) return unknown;
  }
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", factor},
                            {"low_freq_factor", kLow},
                            {"high_freq_factor", kHigh},
                            {"original_max_position_embeddings", kLength}};
  return {};
}

void read_rope(Values& values, double head_dim, json& config) {
  const double turned = values.number("rope.dimension_count").value_or(head_dim);
  config["rope_theta"] = values.number("rope.freq_base").value_or(10000);
  if (turned != head_dim) config["partial_rotary_factor"] = turned / head_dim;
  std::string type = values.text("rope.scaling.type");
  json scaling = {{"rope_type", type}};
  constexpr std::array kFields = {std::pair{"factor", "factor"},
                                  std::pair{"original_context_length", "original_max_position_embeddings"},
                                  std::pair{"attn_factor", "attn_factor"},
                                  std::pair{"yarn_attn_factor", "attn_factor"},
                                  std::pair{"yarn_beta_fast", "beta_fast"},
                                  std::pair{"yarn_beta_slow", "beta_slow"}};
  for (const auto& [stored, name] : kFields) {
    if (const auto value = values.number(std::string("rope.scaling.") + stored)) scaling[name] = *value;
  }
  values.ignore("rope.scaling.finetuned");
  if (const auto old = values.number("rope.scale_linear")) {  // the default of files of 2023
    type = scaling["rope_type"] = "linear";
    scaling["factor"] = *old;
  }
  if (!type.empty() && type != "none") config["rope_scaling"] = scaling;
}

// The sizes of heads, all layers' alike.
void read_heads(Values& values, json& config) {
  const auto hidden = config["hidden_size"].get<double>(), heads = config["num_attention_heads"].get<double>();
  const double head_dim = values.number("attention.key_length").value_or(heads > 0 ? hidden / heads : 0);
  if (values.number("attention.value_length").value_or(head_dim) != head_dim) {
    values.fail(unimplemented(values.file().path() + ": heads of keys and values differ in size, which is not built."));
  }
  config["head_dim"] = number_json(head_dim);
  config["num_key_value_heads"] = number_json(values.number("attention.head_count_kv").value_or(heads));
  read_rope(values, head_dim, config);
}

constexpr double kSoftmax = 1, kSigmoid = 2;  // expert_gating_func

void read_expert_sizes(Values& values, json& config) {
  config["num_experts"] = number_json(values.needed("expert_count"));
  config["num_experts_per_tok"] = number_json(values.needed("expert_used_count"));
  config["moe_intermediate_size"] = number_json(values.needed("expert_feed_forward_length"));
}

void read_experts(Values& values, json& config) {
  read_expert_sizes(values, config);
  config["norm_topk_prob"] = values.boolean("expert_weights_norm", true);
  values.only("expert_gating_func", kSoftmax);
  values.only("expert_weights_scale", 1);
}

// Newer files state the sizes of heads in the absorbed form, where they have one latent, and those of config.json
// under other names.
void read_latent_heads(Values& values, json& config) {
  const auto size = [&](const std::string& key) {
    const std::optional<double> stated = values.number(key), own = values.number(key + "_mla");
    return own.value_or(stated.value_or(0));
  };
  const double rope = values.needed("rope.dimension_count");
  const auto q_rank = values.number("attention.q_lora_rank");
  config["q_lora_rank"] = q_rank && *q_rank > 0 ? number_json(*q_rank) : json();
  config["kv_lora_rank"] = number_json(values.needed("attention.kv_lora_rank"));
  config["qk_rope_head_dim"] = config["head_dim"] = number_json(rope);
  config["qk_nope_head_dim"] = number_json(size("attention.key_length") - rope);
  config["v_head_dim"] = number_json(size("attention.value_length"));
  config["num_key_value_heads"] = config["num_attention_heads"];
  values.ignore("attention.head_count_kv");
  read_rope(values, rope, config);
  if (const auto tenth = values.number("rope.scaling.yarn_log_multiplier"); tenth && config.contains("rope_scaling")) {
    const double all_dim = std::round(*tenth * 1e7) / 1e6;  // the file has a float of 0.1 times the value
    config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"] = all_dim;
  }
}

// DeepSeek's models, and those that have its layers. Those with softmax scores are V2's.
void read_deepseek(Values& values, json& config) {
  const File& file = values.file();
  const json dense = number_json(values.number("leading_dense_block_count").value_or(0));
  const bool biased = file.tensor("blk." + dense.dump() + ".exp_probs_b.bias") != nullptr;
  const double scores = values.number("expert_gating_func").value_or(0);
  const bool sigmoid = scores == kSigmoid || (scores == 0 && biased);  // older files do not say it
  if (scores > kSigmoid) values.only("expert_gating_func", kSigmoid);
  read_expert_sizes(values, config);
  config["norm_topk_prob"] = values.boolean("expert_weights_norm", false);
  config["routed_scaling_factor"] = values.number("expert_weights_scale").value_or(1);
  config["n_shared_experts"] = number_json(values.number("expert_shared_count").value_or(0));
  config["first_k_dense_replace"] = dense;
  // Files from before mid-2025 lack groups. V3 and its kin alone have 256 experts, V2 alone 160.
  const bool is_v3 = config["num_experts"] == 256, is_v2 = config["num_experts"] == 160;
  const double groups = values.number("expert_group_count").value_or(is_v3 || is_v2 ? 8 : 1);
  config["n_group"] = number_json(groups);
  config["topk_group"] = number_json(values.number("expert_group_used_count").value_or(is_v3 ? 4 : is_v2 ? 3 : 1));
  config["num_nextn_predict_layers"] = number_json(values.number("nextn_predict_layers").value_or(0));
  if (sigmoid) return;
  config["architectures"] = json::array({"DeepseekV2ForCausalLM"});
  config["topk_method"] = groups > 1 ? "group_limited_greedy" : "greedy";
}

void read_gpt_oss(Values& values, json& config) {
  read_experts(values, config);
  config["intermediate_size"] = config["moe_intermediate_size"];
  config["interleaved_experts"] = false;
  config["attention_bias"] = config.contains("attention_bias");
  config["sliding_window"] = number_json(values.needed("attention.sliding_window"));
  if (config.contains("rope_scaling"))
    config["rope_scaling"]["truncate"] = false;  // in all models; files do not say it
}

// The decoders with linear attention; `head_dim` elements of a head turn in part.
void read_hybrid(Values& values, json& config) {
  const double v_heads = values.needed("ssm.time_step_rank");
  config["linear_num_key_heads"] = number_json(values.needed("ssm.group_count"));
  config["linear_num_value_heads"] = number_json(v_heads);
  config["linear_key_head_dim"] = number_json(values.needed("ssm.state_size"));
  config["linear_value_head_dim"] = number_json(values.needed("ssm.inner_size") / (v_heads > 0 ? v_heads : 1));
  config["linear_conv_kernel_dim"] = number_json(values.needed("ssm.conv_kernel"));
  config["full_attention_interval"] = number_json(values.number("full_attention_interval").value_or(4));
  config["mtp_num_hidden_layers"] = number_json(values.number("nextn_predict_layers").value_or(0));
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  values.ignore("rope.dimension_sections");  // of a text's positions, which are all alike
}

void read_hybrid_experts(Values& values, json& config) {
  read_hybrid(values, config);
  read_experts(values, config);
  config["shared_expert_intermediate_size"] = number_json(values.needed("expert_shared_feed_forward_length"));
}

void read_gemma3(Values& values, json& config) {
  constexpr double kLayersOf27B = 62;  // the 27B divides the query by another number, which GGUF files do not have
  const bool largest = config["num_hidden_layers"] == kLayersOf27B;
  config["query_pre_attn_scalar"] =
      largest ? config["hidden_size"].get<double>() / config["num_attention_heads"].get<double>()
              : config["head_dim"].get<double>();
  config["sliding_window"] = number_json(values.needed("attention.sliding_window"));
  config["sliding_window_pattern"] = number_json(values.number("attention.sliding_window_pattern").value_or(6));
  config["rope_local_base_freq"] = values.number("rope.freq_base_swa").value_or(10000);
  if (const auto cap = values.number("final_logit_softcapping")) config["final_logit_softcapping"] = *cap;
  values.ignore("mm.tokens_per_image");
}

// Gemma 4: full-attention layers have heads of another size and number, and no V of their own where the file has none.
void read_gemma4_heads(Values& values, json& config) {
  const std::vector<bool> windows = values.booleans("attention.sliding_window_pattern");
  std::vector<double> kv_heads = values.numbers("attention.head_count_kv");
  const auto layers = config["num_hidden_layers"].get<int64_t>();
  if (layers != std::ssize(windows)) return values.fail(values.missing("attention.sliding_window_pattern"));
  if (kv_heads.size() == 1) kv_heads.resize(windows.size(), kv_heads[0]);
  if (kv_heads.size() != windows.size()) return values.fail(values.missing("attention.head_count_kv"));
  config["layer_types"] = json::array();
  for (size_t i = 0; i < windows.size(); ++i) {
    const char* heads = windows[i] ? "num_key_value_heads" : "num_global_key_value_heads";
    config["layer_types"].push_back(windows[i] ? "sliding_attention" : "full_attention");
    if (config.value(heads, kv_heads[i]) != kv_heads[i]) values.fail(values.varies("attention.head_count_kv"));
    config[heads] = number_json(kv_heads[i]);
    if (windows[i]) continue;
    config["attention_k_eq_v"] = values.file().tensor("blk." + std::to_string(i) + ".attn_v.weight") == nullptr;
  }
  config["head_dim"] = number_json(values.needed("attention.key_length_swa"));
  config["global_head_dim"] = number_json(values.needed("attention.key_length"));
  values.only("attention.value_length", config["global_head_dim"].get<double>());
  values.only("attention.value_length_swa", config["head_dim"].get<double>());
  values.only("rope.dimension_count_swa", config["head_dim"].get<double>());
  read_rope(values, config["global_head_dim"].get<double>(), config);
  if (config.contains("rope_scaling")) {
    values.fail(unimplemented(values.file().path() + ": \"gemma4.rope.scaling.type\" is not built."));
  }
  config["rope_parameters"]["sliding_attention"] = {
      {"rope_theta", values.number("rope.freq_base_swa").value_or(10000)}};
}

void read_gemma4(Values& values, json& config) {
  config["sliding_window"] = number_json(values.needed("attention.sliding_window"));
  config["hidden_size_per_layer_input"] = number_json(values.number("embedding_length_per_layer_input").value_or(0));
  config["num_kv_shared_layers"] = number_json(values.number("attention.shared_kv_layers").value_or(0));
  if (const auto cap = values.number("final_logit_softcapping")) config["final_logit_softcapping"] = *cap;
  if (values.number("expert_count").value_or(0) == 0) return;
  read_experts(values, config);
  config["enable_moe_block"] = true;
}

// A drafter in the words of z-lab's config.json. Files that llama.cpp's converter wrote count layers from the
// embedding, so that layer i is the input of the target's layer i.
void read_dflash(Values& values, json& config) {
  const File& file = values.file();
  json own = {{"target_layer_ids", json::array()}};
  for (const double layer : values.numbers("target_layers")) {
    own["target_layer_ids"].push_back(static_cast<int64_t>(std::clamp(layer, -1.0, 1e6)) - 1);
  }
  if (const auto mask = file.header().number("tokenizer.ggml.mask_token_id")) own["mask_token_id"] = number_json(*mask);
  if (const auto cap = values.number("final_logit_softcapping")) own["final_logit_softcapping"] = *cap;
  if (const auto width = values.number("target_hidden_size")) own["target_hidden_size"] = number_json(*width);
  if (values.has("attention.causal")) config["is_causal"] = values.boolean("attention.causal", false);
  if (const auto window = values.number("attention.sliding_window"); window && *window > 0) {
    config["sliding_window"] = number_json(*window);
    config["use_sliding_window"] = true;
    config["layer_types"] = json::array();
    for (const bool slides : values.booleans("attention.sliding_window_pattern")) {
      config["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
    }
  }
  if (file.tensor("selector_hidden.weight") != nullptr) {
    config["architectures"] = json::array({"DFlash2DraftModel"});
    for (const char* key : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
      own[key] = number_json(values.needed(key));
    }
  }
  if (const Tensor* markov = file.tensor("markov_w1.weight")) {
    config["architectures"] = json::array({"DSparkDraftModel"});
    own["markov_rank"] = markov->shape.back();
    own["shift_label"] = values.boolean("sample_from_anchor", true);
    own["enable_confidence_head"] = own["confidence_head_with_markov"] = file.tensor("conf_proj.weight") != nullptr;
    values.ignore("has_confidence_head");
  }
  if (file.tensor("d2t") != nullptr) {
    values.fail(unimplemented(file.path() +
                              " is a drafter with a vocabulary of its own (\"d2t\"), which is not built for GGUF "
                              "files: use its folder in safetensors."));
  }
  config["block_size"] = number_json(values.needed("block_size"));
  config["dflash_config"] = own;
  values.ignore("rope.dimension_sections");  // of a text's positions, which are all alike
}

// Values that only some architectures state, read after all others, and heads that they word in another way.
struct OwnValues {
  std::string_view architecture;
  void (*read)(Values& values, json& config);
  void (*heads)(Values& values, json& config) = read_heads;
};
constexpr OwnValues kOwnValues[] = {
    {"deepseek2", read_deepseek, read_latent_heads},
    {"dflash", read_dflash},
    {"gemma3", read_gemma3},
    {"gemma4", read_gemma4, read_gemma4_heads},
    {"gpt-oss", read_gpt_oss},
    {"qwen35", read_hybrid},
    {"qwen3moe", read_experts},
    {"qwen35moe", read_hybrid_experts},
    {"qwen3next", read_hybrid_experts},
};

std::vector<int64_t> end_ids(const File& file) {
  const Header& header = file.header();
  std::vector<int64_t> ids;
  const std::vector<std::string_view> tokens = header.texts("tokenizer.ggml.tokens");
  const auto add = [&](double id) {
    if (!(id >= 0 && id < INT32_MAX)) return;
    if (const auto whole = static_cast<int64_t>(id); std::ranges::find(ids, whole) == ids.end()) ids.push_back(whole);
  };
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (const auto id = header.number(std::string("tokenizer.ggml.") + key)) add(*id);
  }
  // Files often name one of the tokens that end a turn. In every model these tokens have no other use.
  constexpr std::string_view kEnds[] = {"<|im_end|>",    "<|eot_id|>", "<|eom_id|>",
                                        "<end_of_turn>", "<turn|>",    "<|endoftext|>"};
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (std::ranges::find(kEnds, tokens[i]) != std::end(kEnds)) add(static_cast<double>(i));
  }
  return ids;
}

}  // namespace

Result<std::string> config_json(const File& file) {
  VOLLEY_ASSIGN(const Architecture* architecture, architecture_of(file));
  const Tensor* embedding = file.tensor("token_embd.weight");
  const size_t tokens = file.header().texts("tokenizer.ggml.tokens").size();  // a drafter has its target's embedding
  const bool drafts = std::string_view(architecture->hugging_face).ends_with("DraftModel");
  if (embedding == nullptr && !drafts) {
    return data_loss(file.path() + " has no tensor \"token_embd.weight\": it is damaged, or holds no whole model.");
  }
  Values values(file, std::string(architecture->name) + ".");
  json config = {{"architectures", json::array({architecture->hugging_face})},
                 {"hidden_size", number_json(values.needed("embedding_length"))},
                 {"num_hidden_layers", layers_of(file)},
                 {"num_attention_heads", number_json(values.needed("attention.head_count"))},
                 {"rms_norm_eps", values.needed("attention.layer_norm_rms_epsilon")},
                 {"max_position_embeddings", number_json(values.needed("context_length"))},
                 {"vocab_size", embedding != nullptr ? embedding->shape.front() : static_cast<int64_t>(tokens)},
                 {"tie_word_embeddings", file.tensor("output.weight") == nullptr}};
  if (file.tensor("blk.0.attn_output.bias") != nullptr) config["attention_bias"] = true;
  const auto inner = values.number("feed_forward_length");
  if (inner) config["intermediate_size"] = number_json(*inner);
  if (!inner && !values.number("expert_feed_forward_length")) values.needed("feed_forward_length");
  values.needed("block_count");
  const auto* own = std::ranges::find(kOwnValues, std::string_view(architecture->name), &OwnValues::architecture);
  const bool has_own = own != std::end(kOwnValues);
  (has_own ? own->heads : read_heads)(values, config);
  if (has_own) own->read(values, config);
  for (const char* inert : {"vocab_size", "tensor_data_layout"}) values.ignore(inert);
  VOLLEY_RETURN_IF_ERROR(values.finish());
  if (file.tensor("rope_freqs.weight") != nullptr) VOLLEY_RETURN_IF_ERROR(read_divisors(file, config));
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string generation_config_json(const File& file) {
  json config = json::object();
  if (const std::vector<int64_t> ids = end_ids(file); !ids.empty()) config["eos_token_id"] = ids;
  constexpr std::array kSampling = {std::pair{"temp", "temperature"}, std::pair{"top_k", "top_k"},
                                    std::pair{"top_p", "top_p"}, std::pair{"min_p", "min_p"},
                                    std::pair{"penalty_repeat", "repetition_penalty"}};
  for (const auto& [stored, name] : kSampling) {
    if (const auto value = file.header().number(std::string("general.sampling.") + stored)) {
      config[name] = number_json(*value);
    }
  }
  return config.dump();
}

}  // namespace volley::gguf
