#include "apps/api_keys.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/text.h"

namespace volley::apps {
namespace {

Status add_key(std::string_view text, const std::string& source, std::vector<std::string>& keys) {
  const std::string_view key = trim(text);
  if (key.empty()) return {};
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; })) {
    return invalid_argument(source +
                            " holds a key with a space or a character outside ASCII: no client could send it.");
  }
  keys.emplace_back(key);
  return {};
}

}  // namespace

Result<std::vector<std::string>> read_api_keys(const std::optional<std::string>& file,
                                               const std::optional<std::string>& listed) {
  std::vector<std::string> keys;
  if (file) {
    std::ifstream lines(*file);
    if (!lines) return not_found("cannot read the API keys in " + *file + ": check --api-key-file.");
    for (std::string line; std::getline(lines, line);) {
      if (!trim(line).starts_with('#')) VOLLEY_RETURN_IF_ERROR(add_key(line, *file, keys));
    }
    if (keys.empty()) return invalid_argument(*file + " holds no API key: the server would be open to all.");
  }
  const size_t of_file = keys.size();
  for (std::string_view rest = listed ? *listed : std::string_view(); !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    VOLLEY_RETURN_IF_ERROR(add_key(rest.substr(0, comma), "VOLLEY_API_KEYS", keys));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (listed && keys.size() == of_file) {
    return invalid_argument("VOLLEY_API_KEYS is set and holds no API key: put one in, or unset it.");
  }
  return keys;
}

}  // namespace volley::apps
