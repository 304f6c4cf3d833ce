#include "apps/cli/request_settings.h"

namespace volley::apps {
namespace {

template <typename From, typename To>
void overwrite(const std::optional<From>& from, To* to) {
  if (from) *to = *from;
}

}  // namespace

void apply_settings(const RequestSettings& settings, GenerateRequest* request) {
  SamplingParams& sampling = request->sampling;
  overwrite(settings.temperature, &sampling.temperature);
  overwrite(settings.top_p, &sampling.top_p);
  overwrite(settings.top_k, &sampling.top_k);
  overwrite(settings.min_p, &sampling.min_p);
  overwrite(settings.repetition_penalty, &sampling.repetition_penalty);
  overwrite(settings.presence_penalty, &sampling.presence_penalty);
  overwrite(settings.frequency_penalty, &sampling.frequency_penalty);
  overwrite(settings.logit_bias, &sampling.logit_bias);
  overwrite(settings.logprobs, &sampling.logprobs);
  overwrite(settings.seed, &sampling.seed);
  overwrite(settings.max_tokens, &request->max_tokens);
  overwrite(settings.min_tokens, &request->min_tokens);
  overwrite(settings.ignore_eos, &request->ignore_eos);
  overwrite(settings.stop, &request->stop);
  overwrite(settings.stop_token_ids, &request->stop_token_ids);
  overwrite(settings.grammar, &request->grammar);
}

}  // namespace volley::apps
