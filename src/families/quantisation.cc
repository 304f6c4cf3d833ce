#include "families/quantisation.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>

#include "weights/mapped_file.h"

namespace volley::families {
namespace {

using weights::Quantisation;

constexpr int32_t kMostBlock = 1 << 20;

// Fields that describe how weights were quantised (AutoRound writes how it tuned them), repeat facts that tensors show,
// or concern activations, which are not quantised with a file's scales here.
constexpr std::string_view kDescribes[] = {
    "act_data_type",
    "act_dynamic",
    "act_group_aware",
    "act_group_size",
    "act_sym",
    "activation_scale_ub",
    "activation_scheme",
    "actorder",
    "amp",
    "autoround_version",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "config_groups",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "dynamic",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "exclude_modules",
    "exllama_config",
    "format",
    "global_compression_ratio",
    "gradient_accumulate_steps",
    "ignore",
    "ignored_layers",
    "input_activations",
    "is_marlin_format",
    "iters",
    "kv_cache_quant_targets",
    "lm_head",
    "low_gpu_mem_usage",
    "lr",
    "max_input_length",
    "meta",
    "minmax_lr",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_not_convert",
    "nsamples",
    "observer",
    "observer_kwargs",
    "offload_to_disk",
    "output_activations",
    "pack_dtype",
    "packing_dtype",
    "producer",
    "quant_method",
    "quantization_status",
    "scale_dtype",
    "seqlen",
    "static_groups",
    "sym",
    "symmetric",
    "targets",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "version",
    "zp_dtype",
};

Result<int32_t> read_group(const ConfigFields& fields, std::optional<int32_t> fallback) {
  VOLLEY_ASSIGN(const int32_t group, fields.integer("group_size", -1, kMostBlock, fallback));
  return group;
}

void add_group(int32_t group, Quantisation& q) {
  if (group > 0) q.groups.push_back(group);
}

std::string in_quotes(const std::string& text) {
  return "\"" + text + "\"";
}

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// A list, or text such as "128x128".
Result<std::vector<int32_t>> read_sizes(const ConfigFields& fields, const char* key) {
  const auto value = fields.json().find(key);
  if (value == fields.json().end() || !value->is_string()) return fields.integers(key, 1, kMostBlock);
  VOLLEY_ASSIGN(const std::string text, fields.text(key));
  std::vector<int32_t> sizes;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    int32_t size = 0;
    const auto [behind, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 1 || size > kMostBlock || (behind != end && *behind != 'x')) {
      return fields.wrong(key, "is \"" + text + "\", but must be two numbers, such as 128x128");
    }
    sizes.push_back(size);
    at = behind;
    if (at == end) return sizes;
  }
}

Status read_block(const ConfigFields& fields, const char* key, Quantisation& q) {
  VOLLEY_ASSIGN(const std::vector<int32_t> block, read_sizes(fields, key));
  if (block.empty()) return {};
  if (block.size() != 2) return fields.wrong(key, "must hold two numbers: rows and columns of a block");
  if (block[1] % 16 != 0) {
    return fields.unbuilt(key, "has blocks of " + std::to_string(block[1]) + " columns: built are multiples of 16");
  }
  q.block_rows = block[0];
  q.block_columns = block[1];
  return {};
}

Status read_fp8(const ConfigFields& fields, Quantisation& q) {
  VOLLEY_ASSIGN(const std::string format, fields.text("fmt", "e4m3"));
  if (format != "e4m3") return fields.unbuilt("fmt", "is \"" + format + "\", which is not built; built is e4m3");
  VOLLEY_ASSIGN(const std::string scales, fields.text("scale_fmt", "float"));
  if (scales != "ue8m0" && scales != "float") {
    return fields.unbuilt("scale_fmt", "is \"" + scales + "\", which is not built; built are ue8m0 and float");
  }
  return read_block(fields, "weight_block_size", q);
}

Status read_bits(const ConfigFields& fields) {
  for (const char* key : {"bits", "w_bit"}) {
    if (!fields.has(key)) continue;
    VOLLEY_ASSIGN(const int32_t bits, fields.integer(key, 1, 16));
    if (bits != 4) return fields.unbuilt(key, "is " + std::to_string(bits) + ", which is not built; built is 4");
  }
  // The fields of AutoRound.
  VOLLEY_ASSIGN(const int32_t activation_bits, fields.integer("act_bits", 1, 32, 16));
  if (activation_bits < 16) {
    return fields.unbuilt("act_bits", "is " + std::to_string(activation_bits) + ", which is not built; built is 16");
  }
  VOLLEY_ASSIGN(const std::string type, fields.text("data_type", "int"));
  if (type != "int") return fields.unbuilt("data_type", "is \"" + type + "\", which is not built; built is int");
  return {};
}

Status read_awq(const ConfigFields& fields, Quantisation& q) {
  VOLLEY_RETURN_IF_ERROR(read_bits(fields));
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    VOLLEY_ASSIGN(std::string layout, fields.text(key, "gemm"));
    layout = in_lower_case(std::move(layout));
    if (layout != "gemm") {
      return fields.unbuilt(key, "is \"" + layout + "\", which is not built; built is the order of gemm");
    }
  }
  VOLLEY_ASSIGN(const bool zeros, fields.boolean("zero_point", true));
  if (!zeros) return fields.unbuilt("zero_point", "is false, which is not built; built is true");
  VOLLEY_ASSIGN(const int32_t group, read_group(fields, fields.has("q_group_size") ? std::optional(-1) : 128));
  VOLLEY_ASSIGN(const int32_t other, fields.integer("q_group_size", -1, kMostBlock, -1));
  add_group(group, q);
  add_group(other, q);
  q.integers = Quantisation::Integers::kAwq;
  return {};
}

// Patterns of modules with settings of their own, some with other bits. Modules of a pattern that begins with "-:" are
// plain, which their tensors show too; an empty value sets nothing. compressed-tensors has a flag of that name.
Status refuse_own_settings(const ConfigFields& fields) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> modules, fields.object("dynamic"));
  if (!modules) return {};
  for (const auto& [pattern, settings] : modules->json().items()) {
    if (pattern.starts_with("-:") || (settings.is_object() && settings.empty())) continue;
    return fields.unbuilt("dynamic", "gives \"" + pattern + "\" settings of its own, which is not built");
  }
  modules->take_all();
  return {};
}

Status read_gptq(const ConfigFields& fields, Quantisation& q) {
  VOLLEY_RETURN_IF_ERROR(read_bits(fields));
  std::string layout = "gptq";
  for (const char* key : {"format", "checkpoint_format"}) {
    VOLLEY_ASSIGN(layout, fields.text(key, layout));
  }
  if (layout != "gptq" && layout != "gptq_v2") {
    return fields.unbuilt("checkpoint_format", "is \"" + layout + "\", which is not built; built are gptq and gptq_v2");
  }
  VOLLEY_ASSIGN(const int32_t group, read_group(fields, 128));
  add_group(group, q);
  VOLLEY_RETURN_IF_ERROR(refuse_own_settings(fields));
  VOLLEY_ASSIGN(q.act_order, fields.boolean("desc_act", false));
  q.integers = Quantisation::Integers::kGptq;
  q.zeros_less_one = layout == "gptq";
  return {};
}

// The scheme of keys and values, or of a projection's outputs, which may be keys and values.
Status read_kv_scheme(const ConfigFields& fields, const char* key, Quantisation& q) {
  const auto value = fields.json().find(key);
  if (value == fields.json().end()) return {};
  if (value->is_string()) {  // AutoFP8 says whether scales are in the files
    VOLLEY_ASSIGN(const std::string kind, fields.text(key));
    if (kind != "static" && kind != "dynamic") q.kv_format = in_quotes(kind) + " (" + in_quotes(key) + ")";
    return {};
  }
  VOLLEY_ASSIGN(const std::optional<ConfigFields> scheme, fields.object(key));
  if (!scheme) return {};
  VOLLEY_ASSIGN(const int32_t bits, scheme->integer("num_bits", 1, 16, 8));
  VOLLEY_ASSIGN(const std::string type, scheme->text("type", "int"));
  if (bits != 8 || type != "float") {
    q.kv_format = type + " of " + std::to_string(bits) + " bits (" + in_quotes(key) + ")";
  }
  scheme->take_all();
  return {};
}

Status read_kv_format(const ConfigFields& fields, Quantisation& q) {
  constexpr const char* kAlgorithm = "kv_cache_quant_algo";
  VOLLEY_ASSIGN(const std::string algorithm, fields.text(kAlgorithm, "FP8"));
  if (in_lower_case(algorithm) != "fp8") q.kv_format = algorithm + " (" + in_quotes(kAlgorithm) + ")";
  return read_kv_scheme(fields, "kv_cache_scheme", q);
}

// One group of modules. Only the sizes that tensor shapes do not show are read.
Status read_scheme(const ConfigFields& group, Quantisation& q) {
  VOLLEY_RETURN_IF_ERROR(read_kv_scheme(group, "output_activations", q));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> weights, group.object("weights"));
  if (!weights) return {};
  VOLLEY_ASSIGN(const int32_t bits, weights->integer("num_bits", 1, 16, 8));
  VOLLEY_ASSIGN(const std::string type, weights->text("type", "int"));
  if (!(type == "float" && (bits == 8 || bits == 4)) && !(type == "int" && bits == 4)) {
    return weights->unbuilt("num_bits", "is " + std::to_string(bits) + " of type " + type +
                                            ", which is not built; built are float of 8 or 4 and int of 4 bits");
  }
  VOLLEY_ASSIGN(const std::string strategy, weights->text("strategy", "channel"));
  constexpr std::string_view kBuilt[] = {"tensor", "channel", "group", "tensor_group", "block"};
  if (std::ranges::find(kBuilt, strategy) == std::end(kBuilt)) {
    return weights->unbuilt("strategy", "is \"" + strategy +
                                            "\", which is not built; built are tensor, channel, group, tensor_group "
                                            "and block");
  }
  if (strategy == "block") {
    VOLLEY_RETURN_IF_ERROR(read_block(*weights, "block_structure", q));
  }
  VOLLEY_ASSIGN(const int32_t size, read_group(*weights, -1));
  add_group(size, q);
  return {};
}

Status read_compressed(const ConfigFields& fields, Quantisation& q) {
  constexpr std::string_view kFormats[] = {
      "float-quantized",      "naive-quantized", "pack-quantized", "nvfp4-pack-quantized",
      "mxfp4-pack-quantized", "mixed-precision", "dense"};
  VOLLEY_ASSIGN(const std::string format, fields.text("format", "mixed-precision"));
  if (std::ranges::find(kFormats, format) == std::end(kFormats)) {
    std::string built;
    for (const std::string_view one : kFormats) built += (built.empty() ? "" : ", ") + std::string(one);
    return fields.unbuilt("format", "is \"" + format + "\", which is not built; built are " + built);
  }
  q.name += " " + format;
  VOLLEY_ASSIGN(const std::optional<ConfigFields> sparsity, fields.object("sparsity_config"));
  if (sparsity) {
    VOLLEY_ASSIGN(const std::string kind, sparsity->text("format", "dense"));
    if (kind != "dense") return sparsity->unbuilt("format", "is \"" + kind + "\", which is not built; built is dense");
    sparsity->take_all();
  }
  VOLLEY_ASSIGN(const std::optional<ConfigFields> groups, fields.object("config_groups"));
  if (!groups) return fields.wrong("config_groups", "is missing: it must say how weights are quantised");
  for (const auto& [name, value] : groups->json().items()) {
    if (!value.is_object()) continue;  // a preset's name with its modules: the tensors show the rest
    VOLLEY_ASSIGN(const std::optional<ConfigFields> group, groups->object(name.c_str()));
    VOLLEY_RETURN_IF_ERROR(read_scheme(*group, q));
  }
  if (groups->json().empty()) q.name.clear();  // only the cache is quantised
  return {};
}

Status read_modelopt(const ConfigFields& fields, Quantisation& q) {
  const bool cache = fields.has("kv_cache_quant_algo") || fields.has("kv_cache_scheme");
  if (cache && !fields.has("quant_algo") && !fields.has("config_groups")) {
    q.name.clear();  // only the cache is quantised
    return {};
  }
  VOLLEY_ASSIGN(const std::string algorithm, fields.text("quant_algo"));
  if (algorithm != "FP8" && algorithm != "NVFP4") {
    return fields.unbuilt("quant_algo", "is \"" + algorithm + "\", which is not built; built are FP8 and NVFP4");
  }
  VOLLEY_ASSIGN(const int32_t group, read_group(fields, 16));
  if (algorithm == "NVFP4" && group != 16) {
    return fields.unbuilt("group_size", "is " + std::to_string(group) + ", which is not built; built is 16");
  }
  q.name += " " + algorithm;
  return {};
}

Status no_more(const ConfigFields&, Quantisation&) {
  return {};
}

struct Method {
  const char* name;
  Status (*read)(const ConfigFields&, Quantisation&);
};
constexpr Method kMethods[] = {{"fp8", read_fp8},           {"compressed-tensors", read_compressed},
                               {"awq", read_awq},           {"gptq", read_gptq},
                               {"mxfp4", no_more},          {"fbgemm_fp8", no_more},
                               {"modelopt", read_modelopt}, {"modelopt_fp4", read_modelopt}};

Result<std::shared_ptr<const Quantisation>> read_method(const ConfigFields& fields, const std::string& name) {
  const auto* method = std::ranges::find_if(kMethods, [&](const Method& m) { return m.name == name; });
  if (method == std::end(kMethods)) {
    std::string built;
    for (const Method& m : kMethods) built += (built.empty() ? "" : ", ") + std::string(m.name);
    return fields.unbuilt("quant_method", "is \"" + name + "\", which is not built; built are " + built);
  }
  auto q = std::make_shared<Quantisation>();
  q->name = name;
  // GPTQModel writes this field beside "quant_method", in capital or small letters.
  VOLLEY_ASSIGN(const std::string again, fields.text("method", name));
  if (in_lower_case(again) != name) {
    return fields.unbuilt("method", "is " + in_quotes(again) + ", but \"quant_method\" is " + in_quotes(name) +
                                        ": what differs from it is not built");
  }
  VOLLEY_RETURN_IF_ERROR(method->read(fields, *q));
  VOLLEY_RETURN_IF_ERROR(read_kv_format(fields, *q));
  VOLLEY_RETURN_IF_ERROR(fields.refuse_unread(kDescribes));
  return std::shared_ptr<const Quantisation>(std::move(q));
}

}  // namespace

Result<std::shared_ptr<const Quantisation>> read_quantisation(const ConfigFields& config, const std::string& dir) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> fields, config.object("quantization_config"));
  if (fields) {
    VOLLEY_ASSIGN(const std::string method, fields->text("quant_method"));
    VOLLEY_ASSIGN(std::shared_ptr<const Quantisation> q, read_method(*fields, method));
    fields->take_all();
    return q;
  }
  // The first name that compressed-tensors had for it.
  VOLLEY_ASSIGN(const std::optional<ConfigFields> older, config.object("compression_config"));
  if (older) {
    VOLLEY_ASSIGN(const std::string method, older->text("quant_method", "compressed-tensors"));
    VOLLEY_ASSIGN(std::shared_ptr<const Quantisation> q, read_method(*older, method));
    older->take_all();
    return q;
  }
  const std::string path = dir + "/hf_quant_config.json";
  const auto json = dir.empty() ? Result<nlohmann::json>(not_found("")) : read_json_file(path);
  if (!json.ok() && json.error().code == ErrorCode::kNotFound) return std::shared_ptr<const Quantisation>();
  if (!json.ok()) return json.error();
  const ConfigFields outer(*json, path);
  VOLLEY_ASSIGN(const std::optional<ConfigFields> inner, outer.object("quantization"));
  if (!inner) return outer.wrong("quantization", "is missing: it must say how weights are quantised");
  return read_method(*inner, "modelopt");
}

}  // namespace volley::families
