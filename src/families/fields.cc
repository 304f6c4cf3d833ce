#include "families/fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "weights/json.h"
#include "weights/mapped_file.h"

namespace volley::families {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;

// A value for a message: long ones are cut.
std::string shown(const nlohmann::json& value) {
  const std::string text = value.dump();
  return text.size() <= 60 ? text : text.substr(0, 60) + "…";
}

std::string shown(double x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

bool is_integer_between(const nlohmann::json& value, int32_t min, int32_t max) {
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= INT32_MAX && value.get<int32_t>() >= min && value.get<int32_t>() <= max;
  return value.is_number_integer() && value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

std::string integer_between(int32_t min, int32_t max) {
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

}  // namespace

Result<nlohmann::json> read_json_file(const std::string& path) {
  VOLLEY_ASSIGN(const std::shared_ptr<const weights::MappedFile> file, weights::MappedFile::open(path));
  if (file->bytes().size() > kMaxConfigBytes) return data_loss(path + " is too large for a configuration file.");
  return weights::parse_json_object(file->bytes(), path);
}

const nlohmann::json* ConfigFields::find(const char* key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::has(const char* key) const {
  return find(key) != nullptr;
}

Error ConfigFields::wrong(const std::string& key, const std::string& what) const {
  return invalid_argument(where_ + ": \"" + key + "\" " + what + ".");
}

Error ConfigFields::unbuilt(const std::string& key, const std::string& what) const {
  return unimplemented(where_ + ": \"" + key + "\" " + what + ".");
}

Result<int32_t> ConfigFields::integer(const char* key, int32_t min, int32_t max,
                                      std::optional<int32_t> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be " + integer_between(min, max));
  }
  if (!is_integer_between(*value, min, max)) {
    return wrong(key, "is " + shown(*value) + ", but must be " + integer_between(min, max));
  }
  return value->get<int32_t>();
}

Result<double> ConfigFields::number(const char* key, NumberRange range, std::optional<double> fallback) const {
  const std::string expected = std::string("a number ") + (range.min_excluded ? "above " : "from ") + shown(range.min) +
                               (range.min_excluded ? " and at most " : " to ") + shown(range.max);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be " + expected);
  }
  const double x = value->is_number() ? value->get<double>() : std::nan("");
  if (!(x >= range.min && x <= range.max) || (range.min_excluded && x == range.min)) {
    return wrong(key, "is " + shown(*value) + ", but must be " + expected);
  }
  return x;
}

Result<bool> ConfigFields::boolean(const char* key, std::optional<bool> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be true or false");
  }
  if (!value->is_boolean()) return wrong(key, "is " + shown(*value) + ", but must be true or false");
  return value->get<bool>();
}

Result<std::string> ConfigFields::text(const char* key, std::optional<std::string> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return wrong(key, "is missing: it must be a string");
  }
  if (!value->is_string()) return wrong(key, "is " + shown(*value) + ", but must be a string");
  return value->get<std::string>();
}

Result<std::vector<int32_t>> ConfigFields::integers(const char* key, int32_t min, int32_t max) const {
  std::vector<int32_t> list;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return wrong(key, "is " + shown(*value) + ", but must be a list");
  for (const nlohmann::json& item : *value) {
    if (!is_integer_between(item, min, max)) {
      return wrong(key, "holds " + shown(item) + ", but each must be " + integer_between(min, max));
    }
    list.push_back(item.get<int32_t>());
  }
  return list;
}

Result<std::vector<std::string>> ConfigFields::texts(const char* key) const {
  std::vector<std::string> list;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return wrong(key, "is " + shown(*value) + ", but must be a list");
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) return wrong(key, "holds " + shown(item) + ", but each must be a string");
    list.push_back(item.get<std::string>());
  }
  return list;
}

Result<std::optional<ConfigFields>> ConfigFields::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::optional<ConfigFields>();
  if (!value->is_object()) return wrong(key, "is " + shown(*value) + ", but must be an object");
  return std::optional<ConfigFields>(ConfigFields(*value, where_ + ": " + key));
}

}  // namespace volley::families
