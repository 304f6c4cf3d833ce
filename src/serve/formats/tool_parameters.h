// A tool's parameters, one by one, for formats that write each on its own instead of one JSON object. Pure functions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace volley::serve {

// JSON types that a value may have.
enum JsonTypes : unsigned {
  kNoJsonType = 0,  // the schema does not say
  kJsonString = 1,
  kJsonNumber = 2,
  kJsonBoolean = 4,
  kJsonNull = 8,
  kJsonObject = 16,
  kJsonArray = 32,
};

struct ToolParameter {
  std::string name;
  bool required = false;
  unsigned types = kNoJsonType;    // a union of JsonTypes
  std::vector<std::string> texts;  // the allowed values of a string with "enum" or "const"
  std::string schema_json;         // the parameter's own, as the client wrote it

  // The value is text, otherwise JSON.
  bool is_text() const { return types == kNoJsonType || (types & kJsonString) != 0; }
};

struct ToolParameters {
  std::vector<ToolParameter> listed;  // in the schema's order
  bool any_other = false;             // the schema lists none and forbids none
};

// A call matches one of these. There are several if the schema's root has alternatives ("anyOf", "oneOf", of which the
// first kMaxSignatures combinations count); referenced schemas and all of "allOf" are part of each. `parameters_json`
// must be JSON of an object.
inline constexpr size_t kMaxSignatures = 16;
std::vector<ToolParameters> tool_signatures(std::string_view parameters_json);

// The parameters of all signatures; only those that all require are required.
ToolParameters tool_parameters(std::string_view parameters_json);

// A parameter's schema with the tool's definitions, which its references need.
std::string with_definitions(std::string_view schema_json, std::string_view parameters_json);

// Types of each tool's parameters, by the tool's name.
using ToolTypes = std::map<std::string, std::map<std::string, unsigned>>;

// Turns a bare text value into JSON. A value of an allowed type stays as written. Otherwise it becomes a string, if
// `types` allow one or are unknown; or any JSON, and a string if it is none. Python's spelling counts as JSON, because
// templates print values so.
std::string json_of_bare_value(std::string_view text, unsigned types);

std::string json_escape(std::string_view text);

}  // namespace volley::serve
