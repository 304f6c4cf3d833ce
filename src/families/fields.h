// Typed access to the fields of a configuration file, with errors that name file, field and what was expected.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::families {

// The JSON object in `path`. kNotFound without such a file, kDataLoss if it is not a JSON object.
Result<nlohmann::json> read_json_file(const std::string& path);

// Bounds of a number, both part of the range unless min_excluded.
struct NumberRange {
  double min = 0, max = 0;
  bool min_excluded = false;
};

// A view of one JSON object, which must outlive it. A field that is null counts as absent. Without a fallback, an
// absent field is an error. Errors: kInvalidArgument. Copies share the record of which fields were read. Threads: one
// at a time.
class ConfigFields {
 public:
  // where: names the object in messages, e.g. the file's path.
  ConfigFields(const nlohmann::json& object, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json& json() const { return *object_; }
  bool has(const char* key) const;

  Result<int32_t> integer(const char* key, int32_t min, int32_t max, std::optional<int32_t> fallback = {}) const;
  Result<double> number(const char* key, NumberRange range, std::optional<double> fallback = {}) const;
  Result<bool> boolean(const char* key, std::optional<bool> fallback = {}) const;
  Result<std::string> text(const char* key, std::optional<std::string> fallback = {}) const;
  // Lists: an absent field is an empty list.
  Result<std::vector<int32_t>> integers(const char* key, int32_t min, int32_t max) const;
  Result<std::vector<std::string>> texts(const char* key) const;
  // An object inside this one; no value if absent.
  Result<std::optional<ConfigFields>> object(const char* key) const;

  // Marks every field as read, including those of objects inside.
  void take_all() const;
  // kUnimplemented for the first of unread().
  Status refuse_unread(std::span<const std::string_view> also_inert = {}) const;
  // The fields, here or in objects inside that were read, that no code read and that may change results. Excluded are
  // fields that only describe (dtype, initializer_range, …, or those in `also_inert`) and values that equal the
  // behaviour without the field (null, false, 0, empty, and those listed in fields.cc). Each is an error that names the
  // field.
  std::vector<Error> unread(std::span<const std::string_view> also_inert = {}) const;

  // `what` follows the field's name: "must be …", "is …".
  Error wrong(const std::string& key, const std::string& what) const;
  Error unbuilt(const std::string& key, const std::string& what) const;

 private:
  struct Record;
  ConfigFields(const nlohmann::json& object, std::string where, std::shared_ptr<Record> record);
  const nlohmann::json* find(const char* key) const;  // nullptr if absent

  const nlohmann::json* object_;
  std::string where_;
  std::shared_ptr<Record> record_;
};

}  // namespace volley::families
