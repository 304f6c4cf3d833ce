#include "json_schema.h"

#include <cmath>
#include <random>
#include <regex>
#include <set>
#include <vector>

namespace volley::testing {
namespace {

using Json = OrderedJson;

class Family {
 public:
  explicit Family(int index) : random_(static_cast<uint32_t>(index) * 2654435761u + 1) {}

  Json root() {
    Json schema = object(0);
    if (uses_reference_) {
      schema["$defs"]["point"] = {{"type", "object"},
                                  {"properties", {{"x", integer()}, {"y", integer()}}},
                                  {"required", {"x", "y"}},
                                  {"additionalProperties", false}};
    }
    return schema;
  }

 private:
  int draw(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint32_t>(high - low + 1)); }

  Json object(int depth) {
    static const std::vector<std::string> names = {"name", "kind",  "größe", "a b",    "list", "quoted \"key\"",
                                                   "$id_", "count", "日付",  "nested", "x/y",  "tail"};
    Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    const int count = draw(1, depth == 0 ? 5 : 3), first = draw(0, 11);
    for (int i = 0; i < count; ++i) {
      const std::string& name = names[(first + i) % names.size()];
      schema["properties"][name] = value(depth + 1);
      if (draw(0, 3) > 0) schema["required"].push_back(name);
    }
    schema["additionalProperties"] = false;
    return schema;
  }

  Json value(int depth) {
    switch (draw(0, depth < 3 ? 10 : 7)) {
      case 0:
        return {{"enum", {"red", "dark \"blue\"", 3, 4.5, nullptr, true, "ümlaut"}}};
      case 1:
        return integer();
      case 2:
        return {{"type", "number"}, {"minimum", -draw(0, 9)}, {"maximum", draw(10, 99)}, {"multipleOf", 0.25}};
      case 3:
        return {{"type", "string"}, {"minLength", draw(0, 3)}, {"maxLength", draw(3, 12)}};
      case 4:
        return {{"type", "string"}, {"pattern", pattern()}};
      case 5:
        return {{"type", draw(0, 1) ? "boolean" : "null"}};
      case 6:
        return {{"anyOf", {{{"type", "string"}, {"pattern", pattern()}}, integer(), {{"const", "none"}}}}};
      case 7:
        uses_reference_ = true;
        return {{"$ref", "#/$defs/point"}};
      case 8:
        return object(depth);
      default:
        return {{"type", "array"}, {"items", value(depth + 2)}, {"minItems", draw(0, 2)}, {"maxItems", draw(2, 4)}};
    }
  }

  Json integer() {
    const int low = draw(-50, 1000);
    return {{"type", "integer"}, {"minimum", low}, {"maximum", low + draw(0, 5000)}};
  }

  std::string pattern() {
    static const std::vector<std::string> all = {
        "^[0-9]{5}$",       "^[A-Z]{2}-[0-9]{1,4}$", "^(yes|no|maybe)$",        "^[a-f0-9]{8}$",
        "^a{1,9}b?c{0,2}$", "^\\d{4}-\\d{2}$",       "^([a-z]{1,3} ){1,3}[.]$", "^[a-z]{1,8}@[a-z]{2,5}\\.(org|net)$"};
    return all[random_() % all.size()];
  }

  std::mt19937 random_;
  bool uses_reference_ = false;
};

size_t characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// A visitor over schema and value; `why` holds the first violation.
class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  std::optional<std::string> check(const Json& schema, const Json& value) const {
    static const std::set<std::string> known = {"type",       "properties", "required",  "additionalProperties",
                                                "enum",       "const",      "minimum",   "maximum",
                                                "multipleOf", "anyOf",      "minLength", "maxLength",
                                                "pattern",    "items",      "minItems",  "maxItems",
                                                "$ref",       "$defs"};
    for (const auto& [key, unused] : schema.items()) {
      if (!known.contains(key)) return "the validator does not know " + key;
    }
    const auto wrong = [&](const std::string& keyword) { return value.dump() + " violates " + keyword; };
    if (schema.contains("$ref")) {
      return check(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), value);
    }
    if (schema.contains("anyOf")) {
      for (const Json& one : schema["anyOf"]) {
        if (!check(one, value)) return std::nullopt;
      }
      return wrong("anyOf");
    }
    if (schema.contains("enum")) {
      bool found = false;
      for (const Json& one : schema["enum"]) found = found || one == value;
      if (!found) return wrong("enum");
    }
    if (schema.contains("const") && schema["const"] != value) return wrong("const");
    if (schema.contains("type") && !is_type(schema["type"], value)) return wrong("type");
    if (value.is_number()) return check_number(schema, value);
    if (value.is_string()) return check_string(schema, value.get<std::string>());
    if (value.is_array()) return check_array(schema, value);
    if (value.is_object()) return check_object(schema, value);
    return std::nullopt;
  }

 private:
  static bool is_type(const std::string& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    return type == "integer" && value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  }

  static std::optional<std::string> check_number(const Json& schema, const Json& value) {
    const double number = value.get<double>();
    if (number < schema.value("minimum", -1e300)) return value.dump() + " is below the minimum";
    if (number > schema.value("maximum", 1e300)) return value.dump() + " is above the maximum";
    if (schema.contains("multipleOf") && std::remainder(number, schema["multipleOf"].get<double>()) != 0) {
      return value.dump() + " is no multiple";
    }
    return std::nullopt;
  }

  static std::optional<std::string> check_string(const Json& schema, const std::string& text) {
    const size_t length = characters(text);
    if (length < schema.value("minLength", size_t{0})) return "\"" + text + "\" is too short";
    if (length > schema.value("maxLength", size_t{1} << 30)) return "\"" + text + "\" is too long";
    if (schema.contains("pattern") && !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
      return "\"" + text + "\" is not of the pattern " + schema["pattern"].get<std::string>();
    }
    return std::nullopt;
  }

  std::optional<std::string> check_array(const Json& schema, const Json& value) const {
    if (value.size() < schema.value("minItems", size_t{0})) return value.dump() + " has too few items";
    if (value.size() > schema.value("maxItems", size_t{1} << 30)) return value.dump() + " has too many items";
    for (const Json& item : value) {
      if (auto why = check(schema.value("items", Json::object()), item)) return why;
    }
    return std::nullopt;
  }

  std::optional<std::string> check_object(const Json& schema, const Json& value) const {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return "the property " + name.dump() + " is missing";
    }
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, member] : value.items()) {
      if (!properties.contains(name)) return "the property " + name + " is not allowed";
      if (auto why = check(properties[name], member)) return why;
    }
    return std::nullopt;
  }

  const Json& root_;
};

}  // namespace

OrderedJson schema_of_family(int index) {
  return Family(index).root();
}

std::optional<std::string> violation(const OrderedJson& schema, const std::string& text) {
  const OrderedJson value = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return "no JSON";
  return Validator(schema).check(schema, value);
}

}  // namespace volley::testing
