// The vision of a model: "vision_config", the ids of its tokens, and preprocessor_config.json.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "families/common.h"

namespace volley::families {
namespace {

// Defaults as in transformers.
constexpr int32_t kPatch = 16, kMerge = 2, kFrames = 2;
constexpr int64_t kMinPixels = 65'536, kMaxPixels = 16'777'216;
constexpr float kMiddle = 0.5f;
constexpr int32_t kMostPixels = 1 << 30;

Status read_tokens(const ConfigFields& config, int32_t vocab, PictureRules& rules) {
  VOLLEY_ASSIGN(rules.token, config.integer("image_token_id", 0, vocab - 1));
  VOLLEY_ASSIGN(rules.begin, config.integer("vision_start_token_id", 0, vocab - 1));
  VOLLEY_ASSIGN(rules.end, config.integer("vision_end_token_id", 0, vocab - 1));
  return {};
}

Result<model::TowerSpec> read_sizes(const ConfigFields& config, const ConfigFields& vision,
                                    const model::Decoder& decoder) {
  model::TowerSpec tower;
  PictureRules& rules = tower.rules;
  VOLLEY_RETURN_IF_ERROR(read_tokens(config, decoder.vocab, rules));
  VOLLEY_ASSIGN(tower.layers, vision.integer("depth", 1, kMaxLayers));
  VOLLEY_ASSIGN(tower.hidden, vision.integer("hidden_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(tower.inner, vision.integer("intermediate_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(tower.heads, vision.integer("num_heads", 1, kMaxWidth));
  VOLLEY_ASSIGN(tower.out, vision.integer("out_hidden_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(rules.patch_size, vision.integer("patch_size", 1, 64, kPatch));
  VOLLEY_ASSIGN(rules.merge_size, vision.integer("spatial_merge_size", 1, 16, kMerge));
  VOLLEY_ASSIGN(tower.frames, vision.integer("temporal_patch_size", 1, 16, kFrames));
  VOLLEY_ASSIGN(const int32_t places, vision.integer("num_position_embeddings", 1, kMaxWidth));
  VOLLEY_ASSIGN(tower.deep, vision.integers("deepstack_visual_indexes", 0, tower.layers - 1));
  VOLLEY_ASSIGN(const int32_t channels, vision.integer("in_channels", 1, 16, 3));
  VOLLEY_ASSIGN(const std::string activation, vision.text("hidden_act", "gelu_pytorch_tanh"));
  while (int64_t{tower.side} * tower.side < places) ++tower.side;
  if (int64_t{tower.side} * tower.side != places) {
    return vision.wrong("num_position_embeddings", "must be a square number");
  }
  if ((rules.merge_size & (rules.merge_size - 1)) != 0) {  // a unit of the tower's work has whole squares
    return vision.unbuilt("spatial_merge_size", "is no power of two, which is not built");
  }
  if (channels != 3) return vision.unbuilt("in_channels", "is not 3, which is not built");
  if (activation != "gelu_pytorch_tanh") {
    return vision.unbuilt("hidden_act", "is \"" + activation + "\", which is not built; built is gelu_pytorch_tanh");
  }
  if (tower.out != decoder.hidden) return vision.wrong("out_hidden_size", "must be the decoder's hidden_size");
  if (tower.hidden % tower.heads != 0 || tower.head_dim() % 4 != 0 || tower.head_dim() > 256) {
    return vision.unbuilt("num_heads", "leaves heads of a size that is not built: a multiple of 4 up to 256 is");
  }
  if (std::ranges::adjacent_find(tower.deep, std::ranges::greater_equal()) != tower.deep.end()) {
    return vision.unbuilt("deepstack_visual_indexes", "does not ascend, which is not built");
  }
  return tower;
}

// Three numbers, or the middle.
Status read_colours(const ConfigFields& fields, const char* key, double least, std::array<float, 3>& colours) {
  colours.fill(kMiddle);
  if (!fields.has(key)) return {};
  const nlohmann::json& list = fields.json().at(key);
  const auto fits = [&](const nlohmann::json& value) { return value.is_number() && value >= least && value <= 1; };
  if (!list.is_array() || list.size() != colours.size() || !std::ranges::all_of(list, fits)) {
    return fields.wrong(key, "must be three numbers up to 1");
  }
  std::ranges::copy(list.get<std::vector<float>>(), colours.begin());
  return {};
}

Status read_pixels(const ConfigFields& fields, PictureRules& rules) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> size, fields.object("size"));
  VOLLEY_ASSIGN(rules.min_pixels, (size ? size->integer("shortest_edge", 1, kMostPixels, kMinPixels)
                                        : fields.integer("min_pixels", 1, kMostPixels, kMinPixels)));
  VOLLEY_ASSIGN(rules.max_pixels, (size ? size->integer("longest_edge", 1, kMostPixels, kMaxPixels)
                                        : fields.integer("max_pixels", 1, kMostPixels, kMaxPixels)));
  if (rules.min_pixels <= rules.max_pixels) return {};
  return fields.wrong("size", "has a shortest_edge above its longest_edge; both count pixels of the picture");
}

}  // namespace

void read_tower(const ConfigFields& config, const ConfigFields& vision, TargetConfig& target) {
  Result<model::TowerSpec> tower = read_sizes(config, vision, target.decoder);
  if (tower.ok()) {
    target.decoder.tower = *std::move(tower);
  } else {
    target.no_pictures = tower.error().message;
  }
}

Status read_picture_rules(const std::string& dir, PictureRules& rules) {
  rules.mean.fill(kMiddle);
  rules.std.fill(kMiddle);
  rules.min_pixels = kMinPixels;
  rules.max_pixels = kMaxPixels;
  for (const char* name : {"/preprocessor_config.json", "/processor_config.json"}) {
    const std::string path = dir + name;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    VOLLEY_ASSIGN(const nlohmann::json json, read_json_file(path));
    const ConfigFields file(json, path);
    VOLLEY_ASSIGN(const std::optional<ConfigFields> nested, file.object("image_processor"));
    const ConfigFields& fields = nested ? *nested : file;
    VOLLEY_RETURN_IF_ERROR(read_colours(fields, "image_mean", 0, rules.mean));
    VOLLEY_RETURN_IF_ERROR(read_colours(fields, "image_std", 1e-6, rules.std));
    return read_pixels(fields, rules);
  }
  return {};
}

}  // namespace volley::families
