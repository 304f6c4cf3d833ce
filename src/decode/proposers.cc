#include "decode/proposers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "decode/dflash/config.h"
#include "decode/features/features_spec.h"
#include "decode/mtp/mtp.h"
#include "decode/replay/replay_spec.h"
#include "families/fields.h"

namespace volley::decode {
namespace {

using families::ConfigFields;

// A kind of drafter, by its names in config.json.
struct Kind {
  std::string_view architecture;
  std::string_view algorithm;  // "algorithm" in the speculators library's format; empty: none
  Result<std::shared_ptr<const ProposerSpec>> (*read)(const std::string& dir);
};

constexpr Kind kKinds[] = {
    {"DFlashDraftModel", "dflash", dflash::read_proposer},
    {"Qwen3DFlashDraftModel", "", dflash::read_proposer},  // JetSpec's name
    {"DFlash2DraftModel", "dflash2", dflash::read_proposer},
    {"DSparkDraftModel", "dspark", dflash::read_proposer},
    {"Lfm2DSparkDraftModel", "", dflash::read_proposer},
    {"Qwen3DSparkModel", "", dflash::read_proposer},
    {"Gemma4DSparkModel", "", dflash::read_proposer},
    {"ReplayDraftModel", "", replay::read_proposer},
    {"FeatureStream", "", features::read_proposer},
    // Targets that bring a head of their own.
    {"Qwen3NextForCausalLM", "", mtp::read_proposer},
    {"Qwen3_5ForCausalLM", "", mtp::read_proposer},
    {"Qwen3_5ForConditionalGeneration", "", mtp::read_proposer},
    {"Qwen3_5MoeForCausalLM", "", mtp::read_proposer},
    {"Qwen3_5MoeForConditionalGeneration", "", mtp::read_proposer},
    {"Glm4MoeForCausalLM", "", mtp::read_proposer},
    {"Glm4MoeLiteForCausalLM", "", mtp::read_proposer},
    {"DeepseekV3ForCausalLM", "", mtp::read_proposer},
};

// Kinds that are known and not built, by a part of what files call them, in small letters.
constexpr std::pair<std::string_view, std::string_view> kUnbuilt[] = {
    {"domino", "Domino, which corrects by a recurrent layer over a block's tokens"},
    {"dcoco", "DCOCO, which corrects a row's best tokens"},
    {"lilicorr", "LiLiCorr, which has layers over a row's best tokens"},
    {"xpress", "XPress, which refines a block several times"},
    {"uno", "UNO, which drafts with an adapter of the target"},
};

}  // namespace

std::string kind_text(const std::string& name) {
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  for (const auto& [part, kind] : kUnbuilt) {
    if (small.find(part) != std::string::npos) return "\"" + name + "\" (" + std::string(kind) + ")";
  }
  return "\"" + name + "\"";
}

Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  VOLLEY_ASSIGN(std::string algorithm, config.text("speculators_model_type", ""));
  VOLLEY_ASSIGN(const std::optional<ConfigFields> more, config.object("speculators_config"));
  if (more) {
    VOLLEY_ASSIGN(algorithm, more->text("algorithm", algorithm));
  }
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  if (algorithm.empty() && architectures.empty()) {
    return config.wrong("architectures", "is missing: it must name the drafter's architecture");
  }
  const bool by_algorithm = !algorithm.empty();
  const std::string& name = by_algorithm ? algorithm : architectures[0];
  std::string built;
  for (const Kind& kind : kKinds) {
    const std::string_view own = by_algorithm ? kind.algorithm : kind.architecture;
    if (own == name) return kind.read(dir);
    if (!own.empty()) built += (built.empty() ? "" : ", ") + std::string(own);
  }
  return config.unbuilt(by_algorithm ? "speculators_model_type" : "architectures",
                        "is " + kind_text(name) + ", which is not a drafter that is built; built are: " + built);
}

bool has_windows(const ProposerFacts& facts) {
  return std::ranges::any_of(facts.decoder.layers, [](const model::Layer& layer) {
    const auto kv = layer.mixer_facts().kv;
    return kv && kv->window > 0;
  });
}

Result<int32_t> resolve_block_size(const ProposerFacts& facts, int32_t requested, std::vector<std::string>* warnings) {
  const int32_t trained = 1 + facts.proposals;
  if (requested == 0) return trained;
  if (requested < 2) {
    return invalid_argument("The block size is " + std::to_string(requested) +
                            ", but a block holds one known token and at least one to draft: give 2 or more, or turn "
                            "speculation off.");
  }
  if (requested > trained) {
    warnings->push_back("The block size is " + std::to_string(requested) + ", but the drafter was trained for " +
                        std::to_string(trained) + ": tokens past that are seldom accepted.");
  }
  return requested;
}

}  // namespace volley::decode
