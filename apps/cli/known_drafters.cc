#include "apps/cli/known_drafters.h"

#include <algorithm>
#include <cctype>

namespace volley::apps {
namespace {

struct Pair {
  std::string_view target, drafter;  // target in lower case, without its publisher
};

// docs/models.md has the same pairs, with sizes. Every target of tests/data/published/drafters.jsonl with a drafter
// that loads is here; where there are several, the one whose configuration has been read in full.
constexpr Pair kPairs[] = {
    {"qwen3-4b", "z-lab/Qwen3-4B-DFlash-b16"},
    {"qwen3-8b", "z-lab/Qwen3-8B-DFlash-b16"},
    {"qwen3-14b", "deepseek-ai/dflash_qwen3_14b_block7"},
    {"qwen3-30b-a3b", "RedHatAI/Qwen3-30B-A3B-speculator.dflash"},
    {"qwen3-30b-a3b-instruct-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash"},
    {"llama-3.1-8b-instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"},
    {"meta-llama-3.1-8b-instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"},
    {"qwen3-coder-30b-a3b-instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"},
    {"qwen3-coder-next", "z-lab/Qwen3-Coder-Next-DFlash"},
    {"qwen3.5-4b", "z-lab/Qwen3.5-4B-DFlash"},
    {"qwen3.5-9b", "z-lab/Qwen3.5-9B-DFlash"},
    {"qwen3.5-27b", "z-lab/Qwen3.5-27B-DFlash"},
    {"qwen3.5-35b-a3b", "z-lab/Qwen3.5-35B-A3B-DFlash"},
    {"qwen3.5-122b-a10b", "z-lab/Qwen3.5-122B-A10B-DFlash"},
    {"qwen3.5-397b-a17b", "z-lab/Qwen3.5-397B-A17B-DFlash"},
    {"qwen3.6-27b", "z-lab/Qwen3.6-27B-DFlash"},
    {"qwen3.6-35b-a3b", "z-lab/Qwen3.6-35B-A3B-DFlash"},
    {"qwen3.8-27b", "incoai/Qwen3.8-27B-DFlash2"},
    {"gemma-4-12b-it", "deepseek-ai/dspark_gemma4_12b_block7"},
    {"gemma-4-26b-a4b-it", "z-lab/gemma-4-26B-A4B-it-DFlash"},
    {"gemma-4-31b-it", "z-lab/gemma-4-31B-it-DFlash"},
    {"kimi-k2.5", "z-lab/Kimi-K2.5-DFlash"},
    {"kimi-k2.6", "z-lab/Kimi-K2.6-DFlash"},
    {"kimi-k2.7-code", "nvidia/Kimi-K2.7-Code-DFlash"},
    {"glm-5.2", "UCloud/GLM-5.2-FP8-DFlash"},
    {"glm-5.3", "incoai/GLM-5.3-DFlash2"},
    {"lfm2.5-1.2b-instruct", "LiquidAI/LFM2.5-1.2B-Instruct-DSpark"},
    {"lfm2.5-2.6b", "LiquidAI/LFM2.5-2.6B-DSpark"},
    {"lfm2.5-8b-a1b", "LiquidAI/LFM2.5-8B-A1B-DSpark"},
    {"minimax-m2.7", "nvidia/MiniMax-M2.7-DFlash"},
    {"gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"},
    {"gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"},
};

}  // namespace

std::optional<std::string> known_drafter(std::string_view target) {
  while (target.ends_with('/')) target.remove_suffix(1);
  std::string name(target.substr(target.rfind('/') + 1));  // npos + 1 is 0
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.ends_with("-fp8")) name.resize(name.size() - 4);
  const auto found = std::ranges::find(kPairs, name, &Pair::target);
  if (found == std::end(kPairs)) return std::nullopt;
  return std::string(found->drafter);
}

}  // namespace volley::apps
