// Typed reads of a JSON object's fields. The first error is kept and names the field. Later reads go on, so a parser
// reads all fields and checks once at the end.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json/errors.h"

namespace volley::serve {

std::string in_quotes(std::string_view name);

// A field's value, cut to a length fit for a message.
std::string excerpt(const nlohmann::json& value);

// The value as an integer, 3.0 included; nothing for all else.
std::optional<int64_t> as_integer(const nlohmann::json& value);

class FieldReader {
 public:
  // `object` must be a JSON object and outlive the reader. `taken`: fields that another reader has read.
  explicit FieldReader(const nlohmann::json& object, std::set<std::string_view> taken = {})
      : object_(object), taken_(std::move(taken)) {}

  // Each read marks the name as known. A missing field and null are the same: nullptr, false, `out` untouched.
  const nlohmann::json* get(std::string_view name);
  bool boolean(std::string_view name, bool& out);
  bool integer(std::string_view name, int64_t low, int64_t high, int64_t& out);
  bool integer(std::string_view name, int64_t low, int64_t high, int32_t& out);
  // `range`: the bounds in words, by default "from low to high".
  bool number(std::string_view name, double low, double high, float& out, std::string_view range = {});
  bool string(std::string_view name, std::string& out);
  // The list or the object in `name`; null: it is missing, or of another kind, which fails. `of`: a list's entries, in
  // words.
  const nlohmann::json* list(std::string_view name, std::string_view of = {});
  const nlohmann::json* object(std::string_view name);
  // Reads the object in `name` with a reader of its own. Its errors have the prefix "name.".
  bool object(std::string_view name, const std::function<void(FieldReader&)>& read);

  void fail(ApiError error);  // kept if it is the first
  const std::optional<ApiError>& error() const { return error_; }

  void know(std::string_view name) { known_.insert(name); }
  const std::set<std::string_view>& known() const { return known_; }
  // Up to 16 names of unread fields, each cut to 64 bytes; inner objects' fields follow.
  std::vector<std::string> unread() const;

 private:
  const nlohmann::json& object_;
  const std::set<std::string_view> taken_;
  std::set<std::string_view> known_;  // the callers' string literals
  std::vector<std::string> unread_inside_;
  std::optional<ApiError> error_;
};

// Checks a request's field "metadata"; null counts as missing.
std::optional<ApiError> check_metadata(const nlohmann::json* metadata);

}  // namespace volley::serve
