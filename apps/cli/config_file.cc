#include "apps/cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace volley::apps {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;

int line_of(const YAML::Mark& mark) {
  return mark.line + 1;
}

Error at_line(const std::string& path, const YAML::Mark& mark, const std::string& sentence) {
  return invalid_argument(path + ":" + std::to_string(line_of(mark)) + ": " + sentence);
}

// A scalar without quotes is a number, true, false or null if it is one in JSON.
nlohmann::json json_of(const YAML::Node& node, int depth) {
  if (depth > kMaxDepth) throw YAML::Exception(node.Mark(), "lists and mappings are nested too deeply");
  if (node.IsMap()) {
    auto object = nlohmann::json::object();
    for (const auto& entry : node) object[entry.first.as<std::string>()] = json_of(entry.second, depth + 1);
    return object;
  }
  if (node.IsSequence()) {
    auto array = nlohmann::json::array();
    for (const YAML::Node& item : node) array.push_back(json_of(item, depth + 1));
    return array;
  }
  if (node.IsNull()) return nullptr;
  if (node.Tag() != "!") {
    const auto plain = nlohmann::json::parse(node.Scalar(), nullptr, false);
    if (!plain.is_discarded() && !plain.is_structured() && !plain.is_string()) return plain;
  }
  return node.Scalar();
}

Result<ConfigEntry> read_entry(const std::string& path, const YAML::Node& key, const YAML::Node& value) {
  if (!key.IsScalar()) return at_line(path, key.Mark(), "a key must be the name of an option");
  ConfigEntry entry{key.Scalar(), {}, {}, line_of(key.Mark())};
  std::ranges::replace(entry.key, '_', '-');
  if (value.IsMap()) {
    entry.json = json_of(value, 0).dump();
    return entry;
  }
  const auto add = [&](const YAML::Node& scalar) -> Status {
    if (!scalar.IsScalar() || scalar.Scalar().empty()) {
      return at_line(path, key.Mark(), entry.key + " has no value: give one, or leave the line out");
    }
    entry.values.push_back(scalar.Scalar());
    return {};
  };
  if (!value.IsSequence()) VOLLEY_RETURN_IF_ERROR(add(value));
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) VOLLEY_RETURN_IF_ERROR(add(item));
    if (entry.values.empty()) {
      return at_line(path, key.Mark(), entry.key + " is an empty list: put something in, or leave the line out");
    }
  }
  return entry;
}

}  // namespace

Result<std::vector<ConfigEntry>> read_config_file(const std::string& path) {
  auto text = read_file(path, kMaxFileBytes);
  if (!text.ok()) return Error{text.error().code, text.error().message + " Check --config."};
  std::vector<ConfigEntry> entries;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(*text);
    if (documents.empty() || documents.front().IsNull()) return entries;
    const YAML::Node& root = documents.front();
    if (documents.size() > 1 || !root.IsMap()) {
      return at_line(path, root.Mark(), "it must be one mapping of option names to values, such as \"port: 8000\"");
    }
    for (const auto& pair : root) {
      VOLLEY_ASSIGN(ConfigEntry entry, read_entry(path, pair.first, pair.second));
      const auto before = std::ranges::find(entries, entry.key, &ConfigEntry::key);
      if (before != entries.end()) {
        return at_line(path, pair.first.Mark(), entry.key + " stands in line " + std::to_string(before->line) + " too");
      }
      entries.push_back(std::move(entry));
    }
  } catch (const YAML::Exception& error) {
    return at_line(path, error.mark.is_null() ? YAML::Mark() : error.mark, "it is not YAML: " + error.msg);
  }
  return entries;
}

std::optional<std::vector<std::string>> parse_list(const std::string& text) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) return std::nullopt;
  std::vector<std::string> items;
  for (const nlohmann::json& item : list) {
    if (!item.is_string()) return std::nullopt;
    items.push_back(item.get<std::string>());
  }
  return items;
}

}  // namespace volley::apps
