#include "apps/api_keys.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "base/text.h"

namespace volley::apps {
namespace {

constexpr size_t kMaxKeyFileBytes = 1 << 20;

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
                                               const std::optional<std::string>& listed,
                                               const std::vector<std::string>& given) {
  std::vector<std::string> keys;
  if (file) {
    const Result<std::string> text = read_file(*file, kMaxKeyFileBytes);
    if (!text.ok()) return not_found(text.error().message + " Check --api-key-file.");
    std::istringstream lines(*text);
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
  for (const std::string& key : given) {
    if (trim(key).empty()) return invalid_argument("--api-key is empty: give a key, or leave it out.");
    VOLLEY_RETURN_IF_ERROR(add_key(key, "--api-key", keys));
  }
  return keys;
}

}  // namespace volley::apps
