// The file of --config: YAML, a mapping of option names to values.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

struct ConfigEntry {
  std::string key;                  // with dashes, however it is written
  std::vector<std::string> values;  // a scalar: one
  std::optional<std::string> json;  // a mapping, as JSON
  int line = 0;
};

// In the file's order. kInvalidArgument with the file and the line: it is not YAML, no mapping, or a key is there twice
// or without a value. kNotFound: there is no such file.
Result<std::vector<ConfigEntry>> read_config_file(const std::string& path);

// The texts of a JSON list; nothing: `text` is none, as "[/INST]" is none.
std::optional<std::vector<std::string>> parse_list(const std::string& text);

}  // namespace volley::apps
