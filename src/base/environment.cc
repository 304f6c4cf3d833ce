#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

namespace volley {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// One of freedesktop.org's base directories, or its place below the home folder.
std::string folder_of(const char* variable, const char* below_home) {
  const char* folder = std::getenv(variable);
  if (folder != nullptr && *folder == '/') return folder;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + below_home : "";
}

}  // namespace

bool env_disable_bf16() {
  const char* value = std::getenv("VOLLEY_DISABLE_BF16");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

bool env_no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

std::string env_cache_home() {
  return folder_of("XDG_CACHE_HOME", "/.cache");
}

std::string env_hf_hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE"); cache != nullptr && *cache != '\0') return cache;
  if (const char* home = std::getenv("HF_HOME"); home != nullptr && *home != '\0') return std::string(home) + "/hub";
  const std::string cache = env_cache_home();
  return cache.empty() ? "" : cache + "/huggingface/hub";
}

std::string env_state_home() {
  return folder_of("XDG_STATE_HOME", "/.local/state");
}

std::optional<std::string> env_api_keys() {
  return variable("VOLLEY_API_KEYS");
}

std::optional<std::string> env_cuda_visible_devices() {
  return variable("CUDA_VISIBLE_DEVICES");
}

void load_gpu_code_early() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

void set_nccl_defaults() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

std::vector<std::pair<std::string, std::string>> env_volley_variables() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (!text.starts_with("VOLLEY_") || equals == std::string_view::npos) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace volley
