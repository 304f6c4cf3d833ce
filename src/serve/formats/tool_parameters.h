// What the schema of a tool says of its parameters, one by one: for formats that write each on its own instead of one
// JSON object. Pure functions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace volley::serve {

// The JSON types that a value may have.
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
  std::vector<std::string> texts;  // of a string with an "enum" or a "const": the values it may have
  std::string schema_json;         // the value's own, as the client wrote it

  // The value is text; else it is JSON.
  bool is_text() const { return types == kNoJsonType || (types & kJsonString) != 0; }
};

struct ToolParameters {
  std::vector<ToolParameter> listed;  // in the schema's order
  bool any_other = false;             // the schema lists none and does not forbid any
};

// What a call may be: as one of these. More than one where the schema's root has alternatives ("anyOf", "oneOf", of
// which the first kMaxSignatures combinations count); what it refers to, and all of "allOf", is part of each.
// `parameters_json` must be JSON of an object.
inline constexpr size_t kMaxSignatures = 16;
std::vector<ToolParameters> tool_signatures(std::string_view parameters_json);

// The parameters of all signatures together: one that not all of them require is not required.
ToolParameters tool_parameters(std::string_view parameters_json);

// A parameter's schema with the tool's definitions in it, to which its references are.
std::string with_definitions(std::string_view schema_json, std::string_view parameters_json);

// The types of each tool's parameters, by the tool's name.
using ToolTypes = std::map<std::string, std::map<std::string, unsigned>>;

// How a value that is written as bare text becomes JSON: what has a type that `types` allows, as it was written; a
// string if they allow one or do not say; else any JSON, and a string for what is none. Python's spelling counts as
// JSON's, since templates print values so.
std::string json_of_bare_value(std::string_view text, unsigned types);

// The inside of a JSON string.
std::string json_escape(std::string_view text);

}  // namespace volley::serve
