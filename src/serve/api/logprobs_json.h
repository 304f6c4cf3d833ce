// Log-probabilities in the schemas of the API: chat's, completions', and vLLM's for prompts. Pure.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/responses/response_info.h"

namespace volley::serve {

// How many code points of a text stand before a token. A token of which an earlier one holds the beginning of a
// character begins where the character does. `context`: ids before the text, with which it goes on.
class TextOffset {
 public:
  explicit TextOffset(std::vector<TokenId> context = {}) : context_(std::move(context)) {}

  // Whether a decoder may treat the next token as the first of a text.
  bool at_start(const Decode& decode, bool skip_special) const;
  // Where the next token begins. `skip_special`: such tokens are no part of the text.
  size_t take(TokenId token, const Decode& decode, bool skip_special);

 private:
  std::string shown(const Decode& decode, bool skip_special) const;

  std::vector<TokenId> context_;  // ids whose text is whole, before open_
  size_t offset_ = 0;
  std::vector<TokenId> open_;  // behind offset_: tokens that end in an unfinished character
};

// Writes the log-probabilities of one choice, event by event. Each call appends to `out`, which is null or what an
// earlier call left there.
class LogprobsWriter {
 public:
  // `info` must outlive it. `prompt`: of the choice.
  LogprobsWriter(const ResponseInfo& info, const PromptInfo& prompt)
      : info_(info), offset_(prompt.echo.empty() ? prompt.context : std::vector<TokenId>()) {}

  void add_chat(const std::vector<PositionLogprobs>& positions, nlohmann::ordered_json& out);
  void add_completion(const std::vector<PositionLogprobs>& positions, nlohmann::ordered_json& out);
  // Adds an echoed prompt, before its completion: the first token has no log-probability. `rest`: of the others. `top`:
  // how many alternatives of each position are shown.
  void add_echo(const PromptInfo& prompt, const std::vector<PositionLogprobs>& rest, int top,
                nlohmann::ordered_json& out);

 private:
  // How the next position names tokens: the first of a text by themselves, later ones as they are within a text.
  TokenText next_names();
  void add_position(const PositionLogprobs& position, size_t top, bool skip_special, nlohmann::ordered_json& out);

  const ResponseInfo& info_;
  TextOffset offset_;
  bool begun_ = false;
};

// vLLM's prompt_logprobs: null for the first token, then an object of token id → {logprob, rank, decoded_token} each.
// The rank of a prompt token that is not among the `top` highest is not known: null.
nlohmann::ordered_json prompt_logprobs_json(const std::vector<PositionLogprobs>& rest, int top,
                                            const TokenText& token_text);

}  // namespace volley::serve
