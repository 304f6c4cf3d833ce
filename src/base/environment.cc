#include "base/environment.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace volley {

bool env_disable_bf16() {
  const char* value = std::getenv("VOLLEY_DISABLE_BF16");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

bool env_no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

std::string env_cache_home() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache" : "";
}

std::optional<std::string> env_api_keys() {
  const char* value = std::getenv("VOLLEY_API_KEYS");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace volley
