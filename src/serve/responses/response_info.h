// A response's data beside its events: names, prompts, and what the request asked to see.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/api/openai_request.h"
#include "serve/formats/output_parser.h"

namespace volley::serve {

using TokenText = std::function<std::string(TokenId)>;
using IsCustom = std::function<bool(const std::string& tool)>;
using Decode = std::function<std::string(std::span<const TokenId>, bool skip_special_tokens)>;

// One prompt of a request. A choice belongs to prompt index / n.
struct PromptInfo {
  int32_t tokens = 0;
  std::vector<TokenId> ids;  // if the answer shows them or their log-probabilities
  std::string echo;          // its text; empty: no echo
  // A prompt as long as the context, to be scored: the engine had to choose its last token.
  bool last_is_chosen = false;
  std::vector<TokenId> context = {};  // its last ids, if the output continues its text
};

struct ResponseInfo {
  ApiKind kind = ApiKind::kChat;
  std::string id;       // "chatcmpl-…", "cmpl-…"
  std::string model;    // the client's name for it
  int64_t created = 0;  // Unix seconds
  int n = 1;            // choices of each prompt: choice index = prompt × n + j
  bool logprobs = false;
  int echo_logprobs = -1;  // -1: none; k: for an echoed prompt's tokens, with k alternatives
  ResponseShape shape;
  std::vector<PromptInfo> prompts;                  // at least one
  std::vector<TokenId> stop_token_ids;              // the client's own
  std::optional<OutputParser::Options> parser;      // for chats; nothing: all text is content
  ReasoningStart reasoning = ReasoningStart::kOff;  // whether the model thinks, shown or not
  IsCustom is_custom;                               // whether a tool's calls have free text; null: none has
  bool in_order = false;                            // the answer shows the order of its parts
  TokenText token_text;  // a token's name in log-probabilities within a text, special tokens included
  Decode decode;

  const PromptInfo& prompt_of(int choice) const { return prompts[static_cast<size_t>(choice / n)]; }
};

}  // namespace volley::serve
