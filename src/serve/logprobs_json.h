// Log-probabilities in the schemas of the API: chat's, completions', and vLLM's for prompts. Pure.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "serve/response_info.h"

namespace volley::serve {

// Writes the log-probabilities of one choice, event by event. Each call appends to `out`, which is null or what an
// earlier call left there. `token_text`: a token by itself, special tokens included.
class LogprobsWriter {
 public:
  void add_chat(const std::vector<PositionLogprobs>& positions, const TokenText& token_text,
                nlohmann::ordered_json& out);
  void add_completion(const std::vector<PositionLogprobs>& positions, const TokenText& token_text,
                      nlohmann::ordered_json& out);
  // Adds an echoed prompt, before its completion: the first token has no log-probability. `top`: how many alternatives
  // of each position are shown.
  void add_echo(TokenId first, const std::vector<PositionLogprobs>& rest, int top, const TokenText& token_text,
                nlohmann::ordered_json& out);

 private:
  void add_position(const PositionLogprobs& position, size_t top, const TokenText& token_text,
                    nlohmann::ordered_json& out);

  size_t offset_ = 0;  // code points before the next token: "text_offset"
};

// vLLM's prompt_logprobs: null for the first token, then an object of token id → {logprob, rank, decoded_token} each.
// The rank of a prompt token that is not among the `top` highest is not known: null.
nlohmann::ordered_json prompt_logprobs_json(const std::vector<PositionLogprobs>& rest, int top,
                                            const TokenText& token_text);

}  // namespace volley::serve
