// The sampling fields of a request, from the command line or a line of an --input file. A missing field stays empty, so
// that the next source decides: line over command line over generation_config.json.
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

// Values for fields that no source sets.
struct AnswerDefaults {
  std::optional<SamplingParams> sampling;  // nothing: the server does not say
  // temperature and top_p are a chat's own, because the model's makers name none
  bool milder = false;
  std::optional<bool> thinking;  // nothing: the server does not say, or the template has no such switch
};

// Sets the fields of `request` that `settings` holds. The engine checks ranges.
void apply_settings(const RequestSettings& settings, GenerateRequest* request);

}  // namespace volley::apps
