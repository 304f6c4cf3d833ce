// JSON text from clients: checked before it is parsed, and cut into pieces without changing a byte.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/errors.h"

namespace volley::serve {

// Byte offset of the first byte that is not part of a well-formed UTF-8 sequence (Unicode 15, table 3-7).
std::optional<size_t> find_invalid_utf8(std::string_view text);
size_t count_code_points(std::string_view utf8);
// Control characters (of ASCII and of Latin-1) as \xHH, bytes that are not UTF-8 too; a backslash stays one.
std::string escape_controls(std::string_view text);

constexpr int kMaxJsonDepth = 100;
constexpr size_t kMaxJsonValues = size_t{1} << 20;  // a value takes many times the memory of its text

// A value that takes itself apart before it goes. The library's destructor allocates as many bytes as a container has,
// and where there is no memory for them it ends the process. Moved from, it holds nothing and may only be destroyed.
class OwnedJson {
 public:
  OwnedJson();  // null
  explicit OwnedJson(nlohmann::json value);
  ~OwnedJson();
  OwnedJson(OwnedJson&& other) noexcept;
  OwnedJson& operator=(OwnedJson&&) = delete;

  const nlohmann::json& operator*() const { return *value_; }
  const nlohmann::json* operator->() const { return value_.get(); }

 private:
  friend class JsonBuilder;
  std::unique_ptr<nlohmann::json> value_;
};

// A 400 for invalid UTF-8, for arrays and objects nested deeper than kMaxJsonDepth, for more than kMaxJsonValues
// values, for what is not JSON (with line and column), and for numbers that no double holds. Of equal keys the last one
// counts.
ApiResult<OwnedJson> parse_json(std::string_view body);

// The same, and a 400 for what is not an object.
ApiResult<OwnedJson> parse_json_object(std::string_view body);

// Reads what is known to be JSON, however many values it has. Null where it is none after all.
OwnedJson read_json(std::string_view text);

// The members of an object, the elements of an array: values as the client wrote them, white space around them removed.
// The text must have passed parse_json and be of that kind.
std::vector<std::pair<std::string, std::string_view>> object_members(std::string_view object);
std::vector<std::string_view> array_elements(std::string_view array);
// The last member of that name; empty if there is none.
std::string_view find_member(std::string_view object, std::string_view name);

// `text` as a JSON string; U+FFFD for what is no UTF-8.
std::string json_quote(std::string_view text);

}  // namespace volley::serve
