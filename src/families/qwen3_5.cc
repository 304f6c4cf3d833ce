// Qwen3.5 and 3.6, dense and with experts: text-only checkpoints, and the text part of those with vision.
#include <nlohmann/json.hpp>

#include "families/generation.h"
#include "families/hybrid.h"
#include "families/registry.h"

namespace volley::families {
namespace {

// In checkpoints with vision the decoder's fields lie in "text_config".
Result<TargetConfig> read_text(const ConfigFields& config, const HybridRules& rules) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> text, config.object("text_config"));
  if (!text) return read_hybrid(config, rules);
  VOLLEY_ASSIGN(TargetConfig target, read_hybrid(*text, rules));
  // transformers uses the outer one.
  VOLLEY_ASSIGN(target.decoder.tied_embeddings, config.boolean("tie_word_embeddings", target.decoder.tied_embeddings));
  VOLLEY_ASSIGN(target.eos_ids, read_eos_ids(*text, target.decoder.vocab));  // unless the outer object has some
  VOLLEY_ASSIGN(const std::optional<ConfigFields> vision, config.object("vision_config"));
  if (vision) vision->take_all();
  for (const char* token : {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"}) {
    config.has(token);
  }
  target.names.prefixes.insert(target.names.prefixes.begin(), "model.language_model.");
  target.names.skipped.push_back({"visual.", "vision"});
  return target;
}

}  // namespace

Result<TargetConfig> read_qwen3_5(const ConfigFields& config) {
  return read_text(config, {"qwen3_5"});
}

Result<TargetConfig> read_qwen3_5_moe(const ConfigFields& config) {
  HybridRules rules = {"qwen3_5_moe"};
  rules.experts = true;
  return read_text(config, rules);
}

}  // namespace volley::families
