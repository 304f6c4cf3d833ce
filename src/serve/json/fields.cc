#include "serve/json/fields.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

std::string number_text(double value) {
  std::string text = nlohmann::json(value).dump();
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

std::string in_quotes(std::string_view name) {
  return "\"" + std::string(name) + "\"";
}

std::string excerpt(const nlohmann::json& value) {
  constexpr size_t kMaxExcerpt = 40;
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxExcerpt) text = text.substr(0, kMaxExcerpt) + "…";
  return text;
}

std::optional<int64_t> as_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // 2^53: above, doubles skip integers
  if (number != std::floor(number) || std::abs(number) > kExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

const nlohmann::json* FieldReader::get(std::string_view name) {
  know(name);
  if (taken_.contains(name)) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool FieldReader::boolean(std::string_view name, bool& out) {
  const nlohmann::json* value = get(name);
  if (!value) return false;
  if (!value->is_boolean()) {
    fail(invalid_field(name, in_quotes(name) + " must be true or false, not " + excerpt(*value) + "."));
    return false;
  }
  out = value->get<bool>();
  return true;
}

bool FieldReader::integer(std::string_view name, int64_t low, int64_t high, int64_t& out) {
  const nlohmann::json* value = get(name);
  if (!value) return false;
  const auto number = as_integer(*value);
  if (!number || *number < low || *number > high) {
    fail(invalid_field(name, in_quotes(name) + " must be an integer from " + std::to_string(low) + " to " +
                                 std::to_string(high) + ", not " + excerpt(*value) + "."));
    return false;
  }
  out = *number;
  return true;
}

bool FieldReader::integer(std::string_view name, int64_t low, int64_t high, int32_t& out) {
  int64_t wide = 0;
  if (!integer(name, low, high, wide)) return false;
  out = static_cast<int32_t>(wide);
  return true;
}

bool FieldReader::number(std::string_view name, double low, double high, float& out, std::string_view range) {
  const nlohmann::json* value = get(name);
  if (!value) return false;
  if (!value->is_number() || value->get<double>() < low || value->get<double>() > high) {
    const std::string bounds =
        range.empty() ? "from " + number_text(low) + " to " + number_text(high) : std::string(range);
    fail(invalid_field(name, in_quotes(name) + " must be a number " + bounds + ", not " + excerpt(*value) + "."));
    return false;
  }
  out = value->get<float>();
  return true;
}

bool FieldReader::string(std::string_view name, std::string& out) {
  const nlohmann::json* value = get(name);
  if (!value) return false;
  if (!value->is_string()) {
    fail(invalid_field(name, in_quotes(name) + " must be a string, not " + excerpt(*value) + "."));
    return false;
  }
  out = value->get<std::string>();
  return true;
}

const nlohmann::json* FieldReader::list(std::string_view name, std::string_view of) {
  const nlohmann::json* value = get(name);
  if (!value || value->is_array()) return value;
  fail(invalid_field(name, in_quotes(name) + " must be a list" + (of.empty() ? "" : " of " + std::string(of)) +
                               ", not " + excerpt(*value) + "."));
  return nullptr;
}

const nlohmann::json* FieldReader::object(std::string_view name) {
  const nlohmann::json* value = get(name);
  if (!value || value->is_object()) return value;
  fail(invalid_field(name, in_quotes(name) + " must be an object, not " + excerpt(*value) + "."));
  return nullptr;
}

bool FieldReader::object(std::string_view name, const std::function<void(FieldReader&)>& read) {
  const nlohmann::json* value = object(name);
  if (!value) return false;
  FieldReader inner(*value);
  read(inner);
  const std::string prefix = std::string(name) + ".";
  if (inner.error()) {
    ApiError error = *inner.error();
    error.param = prefix + error.param.value_or("");
    fail(std::move(error));
    return false;
  }
  for (const std::string& field : inner.unread()) unread_inside_.push_back(prefix + field);
  return true;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

std::vector<std::string> FieldReader::unread() const {
  constexpr size_t kMaxNames = 16;
  constexpr size_t kMaxName = 64;
  std::vector<std::string> names;
  for (const auto& item : object_.items()) {
    if (names.size() == kMaxNames) break;
    if (!known_.contains(item.key()) && !taken_.contains(item.key())) names.push_back(item.key().substr(0, kMaxName));
  }
  names.insert(names.end(), unread_inside_.begin(), unread_inside_.end());
  if (names.size() > kMaxNames) names.resize(kMaxNames);
  return names;
}

std::optional<ApiError> check_metadata(const nlohmann::json* metadata) {
  constexpr size_t kMost = 16, kMostOfKey = 64, kMostOfValue = 512;
  if (metadata == nullptr) return std::nullopt;
  bool good = metadata->is_object() && metadata->size() <= kMost;
  if (good) {
    for (const auto& [key, value] : metadata->items()) {
      good = good && count_code_points(key) <= kMostOfKey && value.is_string() &&
             count_code_points(value.get<std::string>()) <= kMostOfValue;
    }
  }
  if (good) return std::nullopt;
  return invalid_field("metadata",
                       "\"metadata\" must be an object of at most 16 texts, each up to 512 characters long and named "
                       "with up to 64.");
}

}  // namespace volley::serve
