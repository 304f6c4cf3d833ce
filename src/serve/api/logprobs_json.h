// Log-probabilities in the APIs' forms: chat's, completions', and vLLM's for prompts. Pure.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/responses/response_info.h"

namespace volley::serve {

// Counts code points of a text before each token. A token that continues a character begins where the character does.
// `context`: ids before the text that it continues.
class TextOffset {
 public:
  explicit TextOffset(std::vector<TokenId> context = {}) : context_(std::move(context)) {}

  // Whether a decoder may treat the next token as the first of a text.
  bool at_start(const Decode& decode, bool skip_special) const;
  // The beginning of the next token. `skip_special`: special tokens have no text.
  size_t take(TokenId token, const Decode& decode, bool skip_special);

 private:
  std::string shown(const Decode& decode, bool skip_special) const;

  std::vector<TokenId> context_;  // ids with complete text, before open_
  size_t offset_ = 0;
  std::vector<TokenId> open_;  // behind offset_: tokens that end in an unfinished character
};

// Writes one choice's log-probabilities, event by event. Each call appends to `out`, which is null at first.
class LogprobsWriter {
 public:
  // `info` must outlive it. `prompt`: the choice's.
  LogprobsWriter(const ResponseInfo& info, const PromptInfo& prompt)
      : info_(info), offset_(prompt.echo.empty() ? prompt.context : std::vector<TokenId>()) {}

  void add_chat(const std::vector<PositionLogprobs>& positions, nlohmann::ordered_json& out);
  void add_completion(const std::vector<PositionLogprobs>& positions, nlohmann::ordered_json& out);
  // Adds an echoed prompt before its completion: the first token has no log-probability, `rest` has the others'. `top`:
  // alternatives shown for each position.
  void add_echo(const PromptInfo& prompt, const std::vector<PositionLogprobs>& rest, int top,
                nlohmann::ordered_json& out);

 private:
  // Names of the next position's tokens: by themselves for the first of a text, within a text for later ones.
  TokenText next_names();
  void add_position(const PositionLogprobs& position, size_t top, bool skip_special, nlohmann::ordered_json& out);

  const ResponseInfo& info_;
  TextOffset offset_;
  bool begun_ = false;
};

// vLLM's prompt_logprobs: null for the first token, then for each an object of token id → {logprob, rank,
// decoded_token}. The rank is null for a prompt token outside the `top` highest, because it is unknown.
nlohmann::ordered_json prompt_logprobs_json(const std::vector<PositionLogprobs>& rest, int top,
                                            const TokenText& token_text);

}  // namespace volley::serve
