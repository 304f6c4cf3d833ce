#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/config_generation.h"
#include "model/config_qwen3.h"

namespace volley::model {
namespace {

// A target family: what its config.json calls itself, and the function that makes a spec of it.
struct Family {
  const char* architecture;
  const char* model_type;
  Result<DecoderSpec> (*read)(const ConfigFields&, const std::string& architecture);
};

Result<DecoderSpec> read_qwen3(const ConfigFields& config, const std::string& architecture) {
  VOLLEY_ASSIGN(DecoderSpec spec, read_qwen3_decoder(config, architecture));
  VOLLEY_ASSIGN(const bool windows, config.boolean("use_sliding_window", false));
  if (windows) return config.unbuilt("use_sliding_window", "is true: sliding windows in a target are not built");
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, spec.layers.size()));
  for (const std::string& type : types) {
    if (type != "full_attention") {
      return config.unbuilt("layer_types",
                            "has \"" + type + "\", which is not built in a target; built is full_attention");
    }
  }
  return spec;
}

constexpr Family kFamilies[] = {{"Qwen3ForCausalLM", "qwen3", read_qwen3}};

Error unknown_architecture(const ConfigFields& config, const std::string& architecture) {
  if (architecture == "DFlashDraftModel") {
    return config.wrong("architectures",
                        "is DFlashDraftModel: this folder holds a drafter, which needs a target beside "
                        "it; give it as the drafter");
  }
  std::string built;
  for (const Family& family : kFamilies) built += (built.empty() ? "" : ", ") + std::string(family.architecture);
  return config.unbuilt("architectures", "is " + architecture + ", which is not built; built are: " + built);
}

}  // namespace

Result<DecoderSpec> read_decoder_spec(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  if (architectures.empty()) return config.wrong("architectures", "is missing: it must name the model's architecture");
  const std::string& architecture = architectures[0];
  const Family* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                      [&](const Family& f) { return f.architecture == architecture; });
  if (family == std::end(kFamilies)) return unknown_architecture(config, architecture);
  VOLLEY_ASSIGN(const std::string model_type, config.text("model_type", family->model_type));
  if (model_type != family->model_type) {
    return config.unbuilt("model_type", "is \"" + model_type + "\", which is not built for " + architecture +
                                            "; built is " + family->model_type);
  }
  VOLLEY_ASSIGN(DecoderSpec spec, family->read(config, architecture));
  VOLLEY_RETURN_IF_ERROR(add_eos_ids(config, spec));
  VOLLEY_RETURN_IF_ERROR(read_generation_config(dir, spec));
  return spec;
}

}  // namespace volley::model
