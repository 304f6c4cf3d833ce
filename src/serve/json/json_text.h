// JSON text from clients: checked before it is parsed, and split without changing a byte.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json/errors.h"

namespace volley::serve {

// Byte offset of the first byte outside of a well-formed UTF-8 sequence (Unicode 15, table 3-7).
std::optional<size_t> find_invalid_utf8(std::string_view text);
size_t count_code_points(std::string_view utf8);
// Writes control characters (of ASCII and of Latin-1) and bytes that are not UTF-8 as \xHH; a backslash stays one.
std::string escape_controls(std::string_view text);

// The form of escape_unseen()'s escapes: each byte as \xHH, or in JSON text the code point as \uHHHH, which a JSON
// reader gets back.
enum class Escapes { kBytes, kJson };
// The same for a line of a log, where no character may hide or reorder its neighbours: also escapes line and paragraph
// separators, text direction, and characters without width (Default_Ignorable_Code_Point of Unicode 15).
std::string escape_unseen(std::string_view text, Escapes escapes);

constexpr int kMaxJsonDepth = 100;
constexpr size_t kMaxJsonValues = size_t{1} << 20;  // a value takes many times the memory of its text

// A 400 for invalid UTF-8, for arrays and objects nested deeper than kMaxJsonDepth, for more than kMaxJsonValues
// values, and for what is not JSON (with line and column). Of equal keys the last one counts. A number beyond double is
// the largest double of its sign: who hands values on cuts them out of the text.
ApiResult<nlohmann::json> parse_json(std::string_view body);

// The same, and a 400 if it is no object.
ApiResult<nlohmann::json> parse_json_object(std::string_view body);

// Reads what is known to be JSON, however many values it has, as parse_json. Null where it is none after all.
nlohmann::json read_json(std::string_view text);
// Whether the text is JSON: its numbers may have any size.
bool is_json_text(std::string_view text);

// An object's members or an array's elements: values as the client wrote them, without white space around them. The
// text must have passed parse_json and be of that kind.
std::vector<std::pair<std::string, std::string_view>> object_members(std::string_view object);
std::vector<std::string_view> array_elements(std::string_view array);
// The last member of that name; empty if there is none.
std::string_view find_member(std::string_view object, std::string_view name);

// A response with JSON text; invalid UTF-8 becomes U+FFFD.
HttpResponse json_response(const nlohmann::ordered_json& json);

// object[name]; null if there is none.
const nlohmann::json& member_of(const nlohmann::json& object, std::string_view name);
// The same as text; empty if there is none.
std::string text_member(const nlohmann::json& object, std::string_view name);

// The object's text with another value of one member; other text stays unchanged.
std::string with_member(std::string_view object, std::string_view name,
                        const std::function<std::string(std::string_view)>& rewrite);

// `text` as a JSON string; invalid UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace volley::serve
