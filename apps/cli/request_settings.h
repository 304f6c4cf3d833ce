// The sampling fields of a request as somebody gave them: on the command line, or on a line of an --input file. What
// was not given stays empty, so that the next source decides: line over command line over generation_config.json.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace volley::apps {

struct RequestSettings {
  std::optional<int32_t> max_tokens, min_tokens;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, logprobs;
  std::optional<uint64_t> seed;
  std::optional<bool> ignore_eos;
  std::optional<std::vector<std::string>> stop;
  std::optional<std::vector<TokenId>> stop_token_ids;
  std::optional<std::vector<std::pair<TokenId, float>>> logit_bias;
  std::optional<GrammarSpec> grammar;
};

// What counts where nothing was given.
struct AnswerDefaults {
  std::optional<SamplingParams> sampling;  // nothing: a server that does not say
  bool milder = false;                     // temperature and top_p are a chat's own: the model's makers name none
  std::optional<bool> thinking;            // nothing: a server that does not say, or a template without such a switch
};

// Overwrites the fields of `request` that `settings` holds. Ranges are the engine's to check.
void apply_settings(const RequestSettings& settings, GenerateRequest* request);

}  // namespace volley::apps
