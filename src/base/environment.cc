#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/text.h"

namespace volley {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// The folder that a variable names, or its place below the home folder.
std::string folder_of(const char* variable, const char* below_home) {
  const char* folder = std::getenv(variable);
  if (folder != nullptr && *folder == '/') return folder;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + below_home : "";
}

bool is_on(const char* name) {
  const std::string value = variable(name).value_or("");
  return !value.empty() && value != "0" && value != "false";
}

std::string hf_home() {
  if (const std::string home = variable("HF_HOME").value_or(""); !home.empty()) return home;
  const std::string cache = env_cache_home();
  return cache.empty() ? "" : cache + "/huggingface";
}

}  // namespace

bool env_disable_bf16() {
  return is_on("VOLLEY_DISABLE_BF16");
}

bool env_no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

std::string env_cache_home() {
  return folder_of("XDG_CACHE_HOME", "/.cache");
}

std::string env_hf_hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE").value_or(""); !cache.empty()) return cache;
  const std::string home = hf_home();
  return home.empty() ? "" : home + "/hub";
}

std::string env_ollama_models() {
  return folder_of("OLLAMA_MODELS", "/.ollama/models");
}

std::vector<std::string> env_lm_studio_models() {
  const std::string home = variable("HOME").value_or("");
  if (!home.starts_with('/')) return {};
  return {home + "/.lmstudio/models", home + "/.cache/lm-studio/models"};
}

std::string env_hf_endpoint() {
  std::string endpoint = variable("HF_ENDPOINT").value_or("");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint.empty() ? "https://huggingface.co" : endpoint;
}

std::string env_hf_token() {
  std::string token = variable("HF_TOKEN").value_or("");
  if (token.empty()) {
    constexpr size_t kMaxTokenBytes = 4096;
    const auto kept = read_file(variable("HF_TOKEN_PATH").value_or(hf_home() + "/token"), kMaxTokenBytes);
    if (kept.ok()) token = *kept;
  }
  return std::string(trim(token));
}

bool env_hf_hub_offline() {
  return is_on("HF_HUB_OFFLINE");
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
