#include "serve/formats/typescript_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;  // with sorted keys, as the declarations have them

constexpr std::string_view kIndent = "  ";

std::string lines_of(const std::string& description, const std::string& indent) {
  std::string lines;
  for (size_t begin = 0; begin <= description.size();) {
    const size_t end = std::min(description.find('\n', begin), description.size());
    if (begin > 0) lines += '\n';
    if (end > begin) lines += indent + "// " + description.substr(begin, end - begin);
    begin = end + 1;
  }
  return lines;
}

std::string as_python(const json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// As Python's json module writes it, with a space behind commas and colons.
std::string spaced(const json& value) {
  if (!value.is_structured() || value.empty()) return value.dump();
  std::string text;
  for (const auto& [key, one] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? json(key).dump() + ": " : std::string()) + spaced(one);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

class Declarer {
 public:
  std::string function(const json& function) {
    const json parameters = function.value("parameters", json::object());
    const std::string object = object_of(parameters.is_object() ? parameters : json::object(), "");
    std::vector<std::string> parts;
    if (refers_to_root_) parts.push_back("interface parameters " + braces(members(parameters, "", false), ""));
    const json definitions = definitions_;
    for (const auto& [name, schema] : definitions.items()) {
      const std::string type = type_of(schema, ""), description = text_member(schema, "description");
      parts.push_back((description.empty() ? "" : lines_of(description, "") + "\n") + "interface " + name + " " + type);
    }
    if (const std::string description = text_member(function, "description"); !description.empty()) {
      parts.push_back(lines_of(description, ""));
    }
    parts.push_back("type " + function.value("name", "function") +
                    " = (_: " + (refers_to_root_ ? "parameters" : object) + ") => any;");
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : "\n") + part;
    return text;
  }

  bool failed() const { return failed_; }

 private:
  std::string type_of(const json& schema, const std::string& indent) {
    if (schema.is_boolean()) return schema.get<bool>() ? "any" : "null";
    if (!schema.is_object()) return fail();
    if (schema.empty()) return "any";
    if (schema.contains("$ref")) return reference(as_python(schema["$ref"]));
    for (const char* list : {"anyOf", "enum"}) {
      if (!schema.contains(list)) continue;
      std::string types;
      for (const json& one : schema[list]) {
        types += (types.empty() ? "" : " | ") + (*list == 'a'      ? type_of(one, indent)
                                                 : one.is_string() ? "\"" + one.get<std::string>() + "\""
                                                                   : as_python(one));
      }
      return types;
    }
    if (!schema.contains("type")) return fail();
    const json& type = schema["type"];
    if (type.is_array()) {
      std::string types;
      for (const json& one : type)
        types += (types.empty() ? "" : " | ") + (one == "array" ? "Array<any>" : one == "object" ? "{}" : name_of(one));
      return types;
    }
    if (type == "object") return object_of(schema, indent);
    if (type != "array") return name_of(type);
    const json items = schema.value("items", json::object());
    const std::string deeper = indent + std::string(kIndent), docs = docs_of(items, deeper);
    if (docs.empty()) return "Array<" + type_of(items, indent) + ">";
    return "Array<\n" + docs + deeper + type_of(items, deeper) + "\n" + indent + ">";
  }

  std::string name_of(const json& type) {
    if (!type.is_string()) return fail();
    return type == "integer" ? "number" : type.get<std::string>();
  }

  std::string object_of(const json& schema, const std::string& indent) {
    if (const json& definitions = member_of(schema, "$defs"); definitions.is_object()) {
      definitions_.update(definitions);
    } else if (!definitions.is_null()) {
      fail();
    }
    std::string lines = members(schema, indent, true);
    const std::string deeper = indent + std::string(kIndent);
    if (const json more = schema.value("additionalProperties", json()); !more.is_null()) {
      const std::string type = more == false ? "never" : type_of(more, deeper);
      lines += (lines.empty() ? "" : ",\n") + deeper + "[k: string]: " + type;
    }
    return braces(lines, indent);
  }

  static std::string braces(const std::string& lines, const std::string& indent) {
    return lines.empty() ? "{}" : "{\n" + lines + "\n" + indent + "}";
  }

  std::string members(const json& schema, const std::string& indent, bool required_first) {
    const json properties = schema.value("properties", json::object()),
               required = schema.value("required", json::array());
    const std::string deeper = indent + std::string(kIndent);
    std::string first, rest;
    for (const auto& [name, property] : properties.items()) {
      const bool optional = std::find(required.begin(), required.end(), json(name)) == required.end();
      std::string& to = optional && required_first ? rest : first;
      to += (to.empty() ? "" : ",\n") + docs_of(property, deeper);
      if (const json value = property.is_object() ? property.value("default", json()) : json(); !value.is_null()) {
        to += deeper + "// Default: " + (value.is_boolean() ? as_python(value) : spaced(value)) + "\n";
      }
      to += deeper + name + (optional ? "?: " : ": ") + type_of(property, deeper);
    }
    return first + (first.empty() || rest.empty() ? "" : ",\n") + rest;
  }

  // Comments above a type: its description, and bounds that its name does not say.
  static std::string docs_of(const json& schema, const std::string& indent) {
    if (!schema.is_object()) return {};
    std::string docs, bounds;
    if (const std::string text = text_member(schema, "description"); !text.empty())
      docs = lines_of(text, indent) + "\n";
    const bool alternatives = schema.contains("$ref") || schema.contains("anyOf") || schema.contains("enum");
    const std::string type = alternatives ? "" : text_member(schema, "type");
    const bool is_number = type == "number" || type == "integer";
    const auto add = [&](bool counts, const char* name) {
      if (counts && schema.contains(name))
        bounds += (bounds.empty() ? "" : ", ") + (name + (": " + as_python(schema[name])));
    };
    for (const char* name : {"maxItems", "minItems"}) add(type == "array", name);
    for (const char* name : {"maxLength", "minLength", "pattern"}) add(type == "string", name);
    for (const char* name : {"maximum", "minimum"}) add(is_number, name);
    return docs + (bounds.empty() ? "" : indent + "// " + bounds + "\n");
  }

  std::string reference(const std::string& to) {
    static constexpr std::string_view kDefinitions = "#/$defs/";
    if (to == "#") {
      refers_to_root_ = true;
      return "parameters";
    }
    const std::string name = to.substr(to.rfind('/') + 1);
    return to.starts_with(kDefinitions) && definitions_.contains(name) ? name : fail();
  }

  std::string fail() {
    failed_ = true;
    return {};
  }

  json definitions_ = json::object();
  bool refers_to_root_ = false, failed_ = false;
};

}  // namespace

std::optional<std::string> typescript_tools(std::string_view tools_json) {
  std::string functions;
  const json tools = read_json(tools_json);
  for (const json& tool : tools.is_array() ? tools : json::array()) {
    if (text_member(tool, "type") != "function") continue;
    Declarer declarer;
    functions += declarer.function(member_of(tool, "function")) + "\n";
    if (declarer.failed()) return std::nullopt;
  }
  if (functions.empty()) return std::nullopt;
  return "# Tools\n\n## functions\nnamespace functions {\n" + functions + "}\n";
}

}  // namespace volley::serve
