#include "serve/model_card.h"

#include <array>
#include <charconv>
#include <cstdint>

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

// The fewest digits that give the same float again: 0.6, not 0.6000000238.
Json shortest(float value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return Json::parse(text.data(), end);
}

Json sampling_json(const SamplingParams& sampling) {
  return {{"temperature", shortest(sampling.temperature)},
          {"top_p", shortest(sampling.top_p)},
          {"top_k", sampling.top_k},
          {"min_p", shortest(sampling.min_p)},
          {"repetition_penalty", shortest(sampling.repetition_penalty)},
          {"presence_penalty", shortest(sampling.presence_penalty)},
          {"frequency_penalty", shortest(sampling.frequency_penalty)}};
}

}  // namespace

Json model_card(const std::string& name, std::time_t created, const EngineInfo& info, const OutputFormat& format) {
  const Json thinking = format.thinks_by_default ? Json(*format.thinks_by_default) : Json(nullptr);
  return {{"id", name},
          {"object", "model"},
          {"created", static_cast<int64_t>(created)},
          {"owned_by", "volley"},
          {"max_model_len", info.max_model_len},
          {"volley",
           {{"block_size", info.block_size},
            {"tensor_parallel_size", info.tensor_parallel_size},
            {"expert_parallel", info.expert_parallel},
            {"default_sampling", sampling_json(info.default_sampling)},
            {"thinking", thinking},
            {"reasoning_effort", format.reads_reasoning_effort}}}};
}

}  // namespace volley::serve
