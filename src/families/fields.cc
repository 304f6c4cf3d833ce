#include "families/fields.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "gguf/model_file.h"
#include "weights/json.h"
#include "weights/mapped_file.h"

namespace volley::families {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;

// A value for a message: long ones are cut.
std::string shown(const nlohmann::json& value) {
  const std::string text = value.dump();
  return text.size() <= 60 ? text : text.substr(0, 60) + "…";
}

std::string shown(double x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

bool is_integer_between(const nlohmann::json& value, int32_t min, int32_t max) {
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= INT32_MAX && value.get<int32_t>() >= min && value.get<int32_t>() <= max;
  return value.is_number_integer() && value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

std::string integer_between(int32_t min, int32_t max) {
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

// Fields that describe a model, its training or its tokens, and affect no computation.
constexpr std::string_view kInert[] = {
    "architectures",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cls_token_id",
    "decoder_start_token_id",
    "dropout",
    "dtype",
    "eos_token_id",  // a drafter ends no text; for a target the field is read
    "finetuned",     // in some dictionaries of rotary embeddings
    "id2label",
    "initializer_range",
    "is_llama_config",  // it and "transformers.js_config" in files that nanotron's converter wrote
    "keys_to_ignore_at_inference",
    "label2id",
    "max_length",
    "model_max_length",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_router_logits",  // this and the next are for training
    "router_aux_loss_coef",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "sep_token_id",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

bool is_inert(std::string_view key) {
  return key.starts_with('_') || key.ends_with("_dropout") || key.ends_with("_dropout_prob") ||
         std::find(std::begin(kInert), std::end(kInert), key) != std::end(kInert);
}

bool is_multiplier(std::string_view key) {
  return key.ends_with("_multiplier") || key.ends_with("_scale") || key.ends_with("_scaling") ||
         key.ends_with("_scaling_factor") || key.starts_with("scale_");
}

// Numbers and switches whose given value changes nothing, though it is not 0 or false. The sampling ones are the
// defaults that transformers has written into config.json.
constexpr std::pair<std::string_view, double> kNeutral[] = {
    {"encoder_repetition_penalty", 1},
    {"guidance_scale", 1},
    {"is_causal", true},
    {"is_neox_style", true},
    {"length_penalty", 1},
    {"num_beam_groups", 1},
    {"num_beams", 1},
    {"num_return_sequences", 1},
    {"repetition_penalty", 1},
    {"rope_is_neox_style", true},
    {"temperature", 1},
    {"top_h", 1},
    {"top_k", 50},
    {"top_p", 1},
    {"typical_p", 1},
};

// Whether the field's value equals the behaviour without the field.
bool is_neutral(std::string_view key, const nlohmann::json& value) {
  if (value.is_boolean() || value.is_number()) {
    const auto neutral = std::ranges::find(kNeutral, key, &std::pair<std::string_view, double>::first);
    const double usual = neutral != std::end(kNeutral)             ? neutral->second
                         : value.is_number() && is_multiplier(key) ? 1
                                                                   : 0;
    return (value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>()) == usual;
  }
  // A family without windows never reads this field.
  if (key == "layer_types")
    return std::ranges::all_of(value, [](const auto& type) { return type == "full_attention"; });
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

}  // namespace

// Which fields of an object were read, and the same for the objects inside it.
struct ConfigFields::Record {
  bool all = false;
  std::set<std::string, std::less<>> keys;
  std::map<std::string, std::shared_ptr<Record>, std::less<>> inside;
};

ConfigFields::ConfigFields(const nlohmann::json& object, std::string where)
    : ConfigFields(object, std::move(where), std::make_shared<Record>()) {}

ConfigFields::ConfigFields(const nlohmann::json& object, std::string where, std::shared_ptr<Record> record)
    : object_(&object), where_(std::move(where)), record_(std::move(record)) {}

void ConfigFields::take_all() const {
  record_->all = true;
}

std::vector<Error> ConfigFields::unread(std::span<const std::string_view> also_inert) const {
  std::vector<Error> errors;
  if (record_->all) return errors;
  for (const auto& [key, value] : object_->items()) {
    if (const auto inside = record_->inside.find(key); inside != record_->inside.end()) {
      const std::vector<Error> more = ConfigFields(value, where_ + ": " + key, inside->second).unread(also_inert);
      errors.insert(errors.end(), more.begin(), more.end());
      continue;
    }
    const bool known = record_->keys.contains(key) || is_inert(key) ||
                       std::find(also_inert.begin(), also_inert.end(), key) != also_inert.end();
    if (known || is_neutral(key, value)) continue;
    errors.push_back(unbuilt(key, "is " + shown(value) +
                                      ", which is unknown here: what it asks for is not built. If it changes no "
                                      "result, remove it from the file"));
  }
  return errors;
}

Status ConfigFields::refuse_unread(std::span<const std::string_view> also_inert) const {
  const std::vector<Error> errors = unread(also_inert);
  return errors.empty() ? Status() : Status(errors.front());
}

Result<nlohmann::json> read_json_file(const std::string& path) {
  if (gguf::lies_in_file(path)) {
    VOLLEY_ASSIGN(const std::string text, gguf::read_model_file(path));
    return weights::parse_json_object(std::as_bytes(std::span(text)), path);
  }
  VOLLEY_ASSIGN(const std::shared_ptr<const weights::MappedFile> file, weights::MappedFile::open(path));
  if (file->bytes().size() > kMaxConfigBytes) return data_loss(path + " is too large for a configuration file.");
  return weights::parse_json_object(file->bytes(), path);
}

const nlohmann::json* ConfigFields::find(const char* key) const {
  record_->keys.emplace(key);
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::has(const char* key) const {
  return find(key) != nullptr;
}

Error ConfigFields::wrong(const std::string& key, const std::string& what) const {
  return invalid_argument(where_ + ": \"" + key + "\" " + what + ".");
}

Error ConfigFields::unbuilt(const std::string& key, const std::string& what) const {
  return unimplemented(where_ + ": \"" + key + "\" " + what + ".");
}

Result<int32_t> ConfigFields::integer(const char* key, int32_t min, int32_t max,
                                      std::optional<int32_t> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be " + integer_between(min, max));
  }
  if (!is_integer_between(*value, min, max)) {
    return wrong(key, "is " + shown(*value) + ", but must be " + integer_between(min, max));
  }
  return value->get<int32_t>();
}

Result<double> ConfigFields::number(const char* key, NumberRange range, std::optional<double> fallback) const {
  const std::string expected = std::string("a number ") + (range.min_excluded ? "above " : "from ") + shown(range.min) +
                               (range.min_excluded ? " and at most " : " to ") + shown(range.max);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be " + expected);
  }
  const double x = value->is_number() ? value->get<double>() : std::nan("");
  if (!(x >= range.min && x <= range.max) || (range.min_excluded && x == range.min)) {
    return wrong(key, "is " + shown(*value) + ", but must be " + expected);
  }
  return x;
}

Result<bool> ConfigFields::boolean(const char* key, std::optional<bool> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be true or false");
  }
  if (!value->is_boolean()) return wrong(key, "is " + shown(*value) + ", but must be true or false");
  return value->get<bool>();
}

Result<std::string> ConfigFields::text(const char* key, std::optional<std::string> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be a string");
  }
  if (!value->is_string()) return wrong(key, "is " + shown(*value) + ", but must be a string");
  return value->get<std::string>();
}

Result<std::vector<int32_t>> ConfigFields::integers(const char* key, int32_t min, int32_t max) const {
  std::vector<int32_t> list;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return wrong(key, "is " + shown(*value) + ", but must be a list");
  for (const nlohmann::json& item : *value) {
    if (!is_integer_between(item, min, max)) {
      return wrong(key, "holds " + shown(item) + ", but each must be " + integer_between(min, max));
    }
    list.push_back(item.get<int32_t>());
  }
  return list;
}

Result<std::vector<std::string>> ConfigFields::texts(const char* key) const {
  std::vector<std::string> list;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return wrong(key, "is " + shown(*value) + ", but must be a list");
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) return wrong(key, "holds " + shown(item) + ", but each must be a string");
    list.push_back(item.get<std::string>());
  }
  return list;
}

Result<std::optional<ConfigFields>> ConfigFields::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::optional<ConfigFields>();
  if (!value->is_object()) return wrong(key, "is " + shown(*value) + ", but must be an object");
  std::shared_ptr<Record>& inside = record_->inside[key];
  if (inside == nullptr) inside = std::make_shared<Record>();
  return std::optional<ConfigFields>(ConfigFields(*value, where_ + ": " + key, inside));
}

}  // namespace volley::families
