// Reads the file of --config: YAML, a mapping of option names to values.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

struct ConfigEntry {
  std::string key;                  // always with dashes
  std::vector<std::string> values;  // a scalar is one value
  std::optional<std::string> json;  // a mapping becomes JSON
  int line = 0;
};

// Keeps the file's order. kInvalidArgument with the file and the line: it is not YAML, no mapping, or a key comes twice
// or without a value. kNotFound: no such file.
Result<std::vector<ConfigEntry>> read_config_file(const std::string& path);

// Texts of a JSON list; nothing if `text` is no such list, as "[/INST]".
std::optional<std::vector<std::string>> parse_list(const std::string& text);

}  // namespace volley::apps
