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
    if (std::ranges::count(list, list.front()) != static_cast<std::ptrdiff_t>(list.size())) {
      fail(unimplemented(file_.path() + ": \"" + prefix_ + key + "\" differs between layers, which is not built."));
    }
    return list.front();
  }
  double needed(const std::string& key) {
    const std::optional<double> value = number(key);
    if (!value) fail(data_loss(file_.path() + " has no number \"" + prefix_ + key + "\": it is damaged."));
    return value.value_or(0);
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

// Llama 3.1's scaling, which files hold as a divisor of each frequency (rope_freqs.weight). These are the config.json
// fields that give those divisors; such models differ only in the factor.
Result<json> read_llama3(const File& file, double theta, double dim) {
  constexpr double kLow = 1, kHigh = 4, kLength = 8192, kTolerance = 1e-3;
  const Tensor& tensor = *file.tensor("rope_freqs.weight");
  const Error unknown = unimplemented(file.path() +
                                      ": \"rope_freqs.weight\" stretches the rotary embedding in a way that is not "
                                      "built; built is that of Llama 3.1.");
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
  const double factor = *std::ranges::max_element(divisors);
  for (size_t i = 0; i < count; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, 2 * static_cast<double>(i) / dim);
    const double smooth = std::clamp((kLength / wave - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double divisor = 1 / ((1 - smooth) / factor + smooth);
    if (!(std::abs(divisors[i] - divisor) <= kTolerance * divisor)) return unknown;
  }
  return json{{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", kLow},
              {"high_freq_factor", kHigh},
              {"original_max_position_embeddings", kLength}};
}

Status read_rope(const File& file, Values& values, double head_dim, json& config) {
  const double theta = values.number("rope.freq_base").value_or(10000);
  const double turned = values.number("rope.dimension_count").value_or(head_dim);
  config["rope_theta"] = theta;
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
  if (file.tensor("rope_freqs.weight") == nullptr) return {};
  VOLLEY_ASSIGN(config["rope_scaling"], read_llama3(file, theta, head_dim));
  return {};
}

void read_experts(Values& values, json& config) {
  config["num_experts"] = number_json(values.needed("expert_count"));
  config["num_experts_per_tok"] = number_json(values.needed("expert_used_count"));
  config["moe_intermediate_size"] = number_json(values.needed("expert_feed_forward_length"));
  config["norm_topk_prob"] = values.boolean("expert_weights_norm", true);
  constexpr double kSoftmax = 1;
  values.only("expert_gating_func", kSoftmax);
  values.only("expert_weights_scale", 1);
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

// What only some architectures state, read after all others.
struct OwnValues {
  std::string_view architecture;
  void (*read)(Values& values, json& config);
};
constexpr OwnValues kOwnValues[] = {
    {"dflash", read_dflash},
    {"gemma3", read_gemma3},
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
  constexpr std::string_view kEnds[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>"};
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
  const double hidden = values.needed("embedding_length"), heads = values.needed("attention.head_count");
  const double head_dim = values.number("attention.key_length").value_or(heads > 0 ? hidden / heads : 0);
  if (values.number("attention.value_length").value_or(head_dim) != head_dim) {
    values.fail(unimplemented(file.path() + ": heads of keys and values differ in size, which is not built."));
  }
  json config = {{"architectures", json::array({architecture->hugging_face})},
                 {"hidden_size", number_json(hidden)},
                 {"num_hidden_layers", layers_of(file)},
                 {"num_attention_heads", number_json(heads)},
                 {"num_key_value_heads", number_json(values.number("attention.head_count_kv").value_or(heads))},
                 {"head_dim", number_json(head_dim)},
                 {"rms_norm_eps", values.needed("attention.layer_norm_rms_epsilon")},
                 {"max_position_embeddings", number_json(values.needed("context_length"))},
                 {"vocab_size", embedding != nullptr ? embedding->shape.front() : static_cast<int64_t>(tokens)},
                 {"tie_word_embeddings", file.tensor("output.weight") == nullptr}};
  if (file.tensor("blk.0.attn_output.bias") != nullptr) config["attention_bias"] = true;
  const auto inner = values.number("feed_forward_length");
  if (inner) config["intermediate_size"] = number_json(*inner);
  if (!inner && !values.number("expert_feed_forward_length")) values.needed("feed_forward_length");
  values.needed("block_count");
  VOLLEY_RETURN_IF_ERROR(read_rope(file, values, head_dim, config));
  const auto* own = std::ranges::find(kOwnValues, std::string_view(architecture->name), &OwnValues::architecture);
  if (own != std::end(kOwnValues)) own->read(values, config);
  for (const char* inert : {"vocab_size", "tensor_data_layout"}) values.ignore(inert);
  VOLLEY_RETURN_IF_ERROR(values.finish());
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
