#include "serve/tool_parameters.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "serve/json_text.h"
#include "serve/tool_call_scanner.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int kMaxReferences = 16;  // that lead to each other: schemas may be recursive

unsigned type_of_name(const json& name) {
  if (name == "string") return kJsonString;
  if (name == "number" || name == "integer") return kJsonNumber;
  if (name == "boolean") return kJsonBoolean;
  if (name == "null") return kJsonNull;
  if (name == "object") return kJsonObject;
  return name == "array" ? kJsonArray : kNoJsonType;
}

unsigned type_of_value(const json& value) {
  if (value.is_string()) return kJsonString;
  if (value.is_number()) return kJsonNumber;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_null()) return kJsonNull;
  return value.is_object() ? kJsonObject : kJsonArray;
}

// What "#/$defs/name" names in `root`, or null.
const json* resolve(const json& root, std::string_view reference) {
  if (!reference.starts_with("#/")) return nullptr;
  const json* at = &root;
  for (reference.remove_prefix(2); at && !reference.empty();) {
    const std::string key(reference.substr(0, reference.find('/')));
    reference.remove_prefix(std::min(reference.size(), key.size() + 1));
    at = at->is_object() && at->contains(key) ? &at->at(key) : nullptr;
  }
  return at;
}

// Follows references. Null: there is no such schema, or it is not an object.
const json* follow(const json* schema, const json& root) {
  for (int i = 0; schema && schema->is_object() && i < kMaxReferences; ++i) {
    const auto reference = schema->find("$ref");
    if (reference == schema->end() || !reference->is_string()) return schema;
    schema = resolve(root, reference->get_ref<const std::string&>());
  }
  return nullptr;
}

unsigned types_of_values(const json& list) {
  unsigned types = kNoJsonType;
  for (const json& value : list) types |= type_of_value(value);
  return types;
}

// The types that schemas of `root` allow. It looks at each schema once, however many refer to it.
class TypeReader {
 public:
  explicit TypeReader(const json& root) : root_(root) {}

  unsigned types_of(const json& written, int depth = 0) {
    if (depth > kMaxReferences) return kNoJsonType;
    const auto [known, is_new] = known_.try_emplace(&written, kNoJsonType);  // of one that is looked at: nothing yet
    if (!is_new) return known->second;
    const json* schema = follow(&written, root_);
    const unsigned types = schema ? read(*schema, depth) : unsigned{kNoJsonType};
    return known_[&written] = types;
  }

 private:
  unsigned read(const json& schema, int depth) {
    const auto member = [&](const char* name, json::value_t type) -> const json* {
      const auto found = schema.find(name);
      return found != schema.end() && (type == json::value_t::discarded || found->type() == type) ? &*found : nullptr;
    };
    if (const json* type = member("type", json::value_t::string)) return type_of_name(*type);
    if (const json* list = member("type", json::value_t::array)) {
      unsigned types = kNoJsonType;
      for (const json& name : *list) types |= type_of_name(name);
      return types;
    }
    if (const json* value = member("const", json::value_t::discarded)) return type_of_value(*value);
    if (const json* values = member("enum", json::value_t::array)) return types_of_values(*values);
    for (const char* any : {"anyOf", "oneOf"}) {
      if (const json* list = member(any, json::value_t::array)) return types_of_any(*list, depth);
    }
    if (const json* all = member("allOf", json::value_t::array)) {
      for (const json& one : *all) {
        if (const unsigned types = types_of(one, depth + 1)) return types;
      }
    }
    if (schema.contains("properties")) return kJsonObject;
    return schema.contains("items") ? unsigned{kJsonArray} : unsigned{kNoJsonType};
  }

  // What "anyOf" or "oneOf" allows. An alternative that may be anything may be a string.
  unsigned types_of_any(const json& list, int depth) {
    unsigned types = kNoJsonType;
    for (const json& one : list) {
      const unsigned own = types_of(one, depth + 1);
      types |= own == kNoJsonType ? unsigned{kJsonString} : own;
    }
    return types;
  }

  const json& root_;
  std::unordered_map<const json*, unsigned> known_;
};

// The values of a string's "enum" or "const".
std::vector<std::string> texts_of(const json& written, const json& root) {
  const json* schema = follow(&written, root);
  if (!schema) return {};
  json values = schema->value("enum", json::array());
  if (schema->contains("const")) values = json::array({schema->at("const")});
  std::vector<std::string> texts;
  for (const json& value : values) {
    if (value.is_string()) texts.push_back(value.get<std::string>());
  }
  return texts;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view word_of_python(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  return text == "None" ? "null" : text;
}

}  // namespace

ToolParameters tool_parameters(std::string_view parameters_json) {
  ToolParameters parameters;
  const OwnedJson parsed_root = read_json(parameters_json);
  const json& root = *parsed_root;
  const std::string_view properties = find_member(parameters_json, "properties");
  if (properties.empty() || !root.at("properties").is_object() || root.at("properties").empty()) {
    parameters.any_other = root.value("additionalProperties", json()) != false;
    return parameters;
  }
  std::set<std::string_view> required;
  if (const auto listed = root.find("required"); listed != root.end() && listed->is_array()) {
    for (const json& name : *listed) {
      if (name.is_string()) required.insert(name.get_ref<const std::string&>());
    }
  }
  TypeReader types(root);
  for (const auto& [name, schema] : object_members(properties)) {
    const json& parsed = root.at("properties").at(name);
    ToolParameter parameter;
    parameter.name = name;
    parameter.required = required.contains(name);
    parameter.types = types.types_of(parsed);
    if (parameter.types == kJsonString) parameter.texts = texts_of(parsed, root);
    parameter.schema_json = schema;
    parameters.listed.push_back(std::move(parameter));
  }
  return parameters;
}

std::string with_definitions(std::string_view schema, std::string_view parameters) {
  if (!schema.starts_with('{')) return std::string(schema);
  std::string text;
  const auto add = [&](std::string_view key, std::string_view value) {
    text.append(text.empty() ? "{" : ", ").append(json(std::string(key)).dump()).append(": ").append(value);
  };
  for (const auto& [key, value] : object_members(schema)) {
    if (key != "$defs" && key != "definitions") add(key, value);
  }
  for (const auto& [key, value] : object_members(parameters)) {
    if (key == "$defs" || key == "definitions") add(key, value);
  }
  return text.empty() ? "{}" : text + "}";
}

std::string json_of_bare_value(std::string_view text, unsigned types) {
  if (types != kNoJsonType && types != kJsonString) {
    const std::string_view word = word_of_python(trim(text));
    const json value = json::parse(word, nullptr, /*allow_exceptions=*/false);
    if (!value.is_discarded()) {
      // A string among other types is written without quotes.
      const bool fits = !value.is_string() && (type_of_value(value) & types) != 0;
      if (fits || (types & kJsonString) == 0) return std::string(word);
    }
  }
  return "\"" + json_escape(text) + "\"";
}

std::string json_escape(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (escaped += '\\') += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '\t') {
      escaped += "\\t";
    } else if (c == '\r') {
      escaped += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      ((escaped += "\\u00") += kHex[c >> 4]) += kHex[c & 15];
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace volley::serve
