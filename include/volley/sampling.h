// How a request's tokens are chosen. The rule is Gumbel-max with a counter-based generator (docs/architecture.md): the
// token at absolute position t is argmax_v (l[v] + g(seed, t, v)) over the processed logits l.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace volley {

using TokenId = int32_t;

// Processing order: penalties, logit bias and masks, temperature, min-p, top-k, top-p. At temperature 0 the last four
// do nothing. Values are checked when a request is submitted.
struct SamplingParams {
  float temperature = 1.0f;         // >= 0; 0 takes the highest logit, ties to the lowest id
  float top_p = 1.0f;               // (0, 1]: smallest set of likeliest tokens whose probability reaches top_p
  int32_t top_k = 0;                // 0 or -1: off; else the k likeliest tokens
  float min_p = 0.0f;               // [0, 1]: tokens at least min_p times as likely as the likeliest
  float repetition_penalty = 1.0f;  // > 0; over prompt and output: positive logits divided, negative multiplied
  float presence_penalty = 0.0f;    // [-2, 2]; subtracted once for a token that the output holds
  float frequency_penalty = 0.0f;   // [-2, 2]; subtracted once for each time the output holds the token
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to logits; [-100, 100]
  std::optional<uint64_t> seed;                       // without one the engine draws one
  uint32_t choice_index = 0;  // which of a request's `n` choices this is: another stream of noise
  int32_t logprobs = -1;      // -1: none; k >= 0: the chosen token's and the k highest of each position (max 20)
};

// Log-softmax of the raw logits, before any processing.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
};

struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // highest first, ties to the lower id
};

}  // namespace volley
