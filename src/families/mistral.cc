// Mistral 7B and Nemo: one sliding window for all layers, or none.
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

// As in transformers, where the file does not have the field; null means no window.
constexpr int32_t kDefaultWindow = 4096;

}  // namespace

Result<TargetConfig> read_mistral(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "mistral"));
  int32_t window = config.json().contains("sliding_window") ? 0 : kDefaultWindow;
  if (config.has("sliding_window")) {
    VOLLEY_ASSIGN(window, config.integer("sliding_window", 1, kMaxWindow));
  }
  for (model::Layer& layer : dense.decoder.layers) attention_of(layer).window = window;
  VOLLEY_RETURN_IF_ERROR(check_layer_types(config, dense.decoder.layers));
  return target_of(std::move(dense));
}

}  // namespace volley::families
