// JSON schemas for the tests of structured output: families of them, and a validator that owes nothing to the grammar
// engine under test.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace volley::testing {

using OrderedJson = nlohmann::ordered_json;  // properties keep the order in which a schema has them

// The schema number `index`: nested objects, enumerations, arrays, numbers, patterns, alternatives and references, each
// bounded so that a text of a few hundred tokens satisfies it whatever a model prefers. Equal arguments give equal
// schemas.
OrderedJson schema_of_family(int index);

// The error of `text` as an instance of `schema`, or no value. Supports the keywords of the families above and refuses
// any other.
std::optional<std::string> violation(const OrderedJson& schema, const std::string& text);

}  // namespace volley::testing
