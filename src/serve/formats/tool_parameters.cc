#include "serve/formats/tool_parameters.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "serve/formats/tool_call_scanner.h"
#include "serve/json/json_text.h"
#include "serve/json/python_literal.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int kMaxReferences = 16;  // in a chain: schemas may be recursive

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

// The schema in `root` that "#/$defs/name" names, or null.
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

// Follows references. Null: no such schema, or no object.
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

// Finds the types that schemas of `root` allow, and looks at each schema once.
class TypeReader {
 public:
  explicit TypeReader(const json& root) : root_(root) {}

  unsigned types_of(const json& written, int depth = 0) {
    if (depth > kMaxReferences) return kNoJsonType;
    const auto [known, is_new] = known_.try_emplace(&written, kNoJsonType);  // no type while it is being looked at
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

  // Types that "anyOf" or "oneOf" allows. An alternative without a type may be a string.
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

// Values of a string's "enum" or "const".
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

// One of the schemas that together constrain a call.
struct Part {
  std::string_view text;  // as the client wrote it
  const json* schema;
};
using Parts = std::vector<Part>;

// Collects the parts of a tool's schema for each of its alternatives.
class SignatureReader {
 public:
  SignatureReader(std::string_view text, const json& root) : root_{text, &root} {}

  std::vector<Parts> read() { return read(root_); }

 private:
  std::vector<Parts> read(const Part& part) {
    std::vector<Parts> all = {{part}};
    if (!part.schema->is_object() || --left_ < 0) return all;
    if (const auto target = target_of(part)) all = joined(all, read(*target));
    for (const Part& one : list(part, "allOf")) all = joined(all, read(one));
    for (const char* keyword : {"anyOf", "oneOf"}) {
      std::vector<Parts> alternatives;
      for (const Part& one : list(part, keyword)) {
        for (Parts& parts : read(one)) alternatives.push_back(std::move(parts));
      }
      if (!alternatives.empty()) all = joined(all, alternatives);
    }
    return all;
  }

  static std::vector<Parts> joined(const std::vector<Parts>& these, const std::vector<Parts>& those) {
    std::vector<Parts> pairs;
    for (const Parts& one : these) {
      for (const Parts& other : those) {
        if (pairs.size() == kMaxSignatures) return pairs;
        pairs.push_back(one);
        pairs.back().insert(pairs.back().end(), other.begin(), other.end());
      }
    }
    return pairs;
  }

  static Parts list(const Part& part, const char* keyword) {
    Parts parts;
    const auto found = part.schema->find(keyword);
    if (found == part.schema->end() || !found->is_array()) return parts;
    const auto texts = array_elements(find_member(part.text, keyword));
    for (size_t i = 0; i < texts.size(); ++i) parts.push_back({texts[i], &found->at(i)});
    return parts;
  }

  // The schema that "$ref" names, if the document has it.
  std::optional<Part> target_of(const Part& part) const {
    const auto reference = part.schema->find("$ref");
    if (reference == part.schema->end() || !reference->is_string()) return std::nullopt;
    std::string_view rest = reference->get_ref<const std::string&>();
    if (!rest.starts_with("#/")) return std::nullopt;
    Part at = root_;
    for (rest.remove_prefix(2); !rest.empty();) {
      const std::string key(rest.substr(0, rest.find('/')));
      rest.remove_prefix(std::min(rest.size(), key.size() + 1));
      if (!at.schema->is_object() || !at.schema->contains(key)) return std::nullopt;
      at = {find_member(at.text, key), &at.schema->at(key)};
    }
    return at;
  }

  const Part root_;
  int left_ = 256;  // schemas left to look at, because they may refer to one another for ever
};

ToolParameter* find(ToolParameters& parameters, std::string_view name) {
  const auto found = std::ranges::find(parameters.listed, name, &ToolParameter::name);
  return found == parameters.listed.end() ? nullptr : &*found;
}

// Narrows a parameter that two schemas describe.
void narrow(ToolParameter& known, ToolParameter parameter) {
  const auto says_nothing = [](const std::string& schema) { return schema == "true" || schema == "{}"; };
  const unsigned both = known.types & parameter.types;
  known.types = both ? both : known.types ? known.types : parameter.types;
  if (known.texts.empty()) known.texts = std::move(parameter.texts);
  if (known.types != kJsonString) known.texts.clear();
  if (says_nothing(known.schema_json)) {
    known.schema_json = std::move(parameter.schema_json);
  } else if (!says_nothing(parameter.schema_json)) {
    known.schema_json = R"({"allOf": [)" + known.schema_json + ", " + parameter.schema_json + "]}";
  }
}

ToolParameters signature_of(const Parts& parts, TypeReader& types, const json& root) {
  ToolParameters signature;
  bool closed = false;
  const auto add = [&](ToolParameter parameter) {
    if (ToolParameter* known = find(signature, parameter.name)) {
      narrow(*known, std::move(parameter));
    } else {
      signature.listed.push_back(std::move(parameter));
    }
  };
  for (const auto& [text, schema] : parts) {
    if (!schema->is_object()) continue;
    closed = closed || schema->value("additionalProperties", json()) == false;
    if (const auto properties = schema->find("properties"); properties != schema->end() && properties->is_object()) {
      for (const auto& [name, value] : object_members(find_member(text, "properties"))) {
        const json& parsed = properties->at(name);
        ToolParameter parameter{name, false, types.types_of(parsed), {}, std::string(value)};
        if (parameter.types == kJsonString) parameter.texts = texts_of(parsed, root);
        add(std::move(parameter));
      }
    }
  }
  for (const auto& [text, schema] : parts) {
    for (const json& name : schema->is_object() ? schema->value("required", json::array()) : json::array()) {
      if (!name.is_string()) continue;
      if (!find(signature, name.get_ref<const std::string&>()))
        add({name.get<std::string>(), true, kNoJsonType, {}, "true"});
      find(signature, name.get_ref<const std::string&>())->required = true;
    }
  }
  signature.any_other = signature.listed.empty() && !closed;
  return signature;
}

}  // namespace

std::vector<ToolParameters> tool_signatures(std::string_view parameters_json) {
  const auto root = read_json(parameters_json);
  TypeReader types(root);
  std::vector<ToolParameters> signatures;
  for (const Parts& parts : SignatureReader(parameters_json, root).read()) {
    signatures.push_back(signature_of(parts, types, root));
  }
  return signatures;
}

ToolParameters tool_parameters(std::string_view parameters_json) {
  std::vector<ToolParameters> signatures = tool_signatures(parameters_json);
  ToolParameters all = std::move(signatures.front());
  for (size_t i = 1; i < signatures.size(); ++i) {
    for (ToolParameter& known : all.listed) known.required = known.required && find(signatures[i], known.name);
    for (ToolParameter& parameter : signatures[i].listed) {
      if (ToolParameter* known = find(all, parameter.name)) {
        known->required = known->required && parameter.required;
        known->types = known->types && parameter.types ? known->types | parameter.types : unsigned{kNoJsonType};
        known->texts.clear();
      } else {
        parameter.required = false;
        all.listed.push_back(std::move(parameter));
      }
    }
    all.any_other = all.any_other || signatures[i].any_other;
  }
  return all;
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
    std::string literal(trim_end(skip_space(text)));
    if (!is_json_text(literal)) literal = json_of_python(literal).value_or("");
    if (is_json_text(literal)) {
      const json value = read_json(literal);
      // A string among other types is written without quotes.
      const bool fits = !value.is_string() && (type_of_value(value) & types) != 0;
      if (fits || (types & kJsonString) == 0) return literal;
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
