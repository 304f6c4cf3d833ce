// The request bodies of POST /v1/chat/completions and /v1/completions: JSON in, a checked request out. Pure functions;
// what needs the model (chat template, tokenizer, context length) happens later, in api.cc.
#pragma once

#include <volley/engine.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/errors.h"

namespace volley::serve {

enum class ApiKind { kChat, kCompletion };

// What a request is checked against. Borrowed for the length of a call.
struct RequestRules {
  const EngineInfo& info;
  const std::vector<std::string>& served_models;  // the first is the default
  int max_n = 128;
  int max_choices = 1024;  // prompts × n
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;
  ChatMessages chat;            // of kChat
  std::vector<Prompt> prompts;  // of kCompletion: at least one
  bool add_special_tokens = false;
  GenerateRequest generate;       // all but the prompt and the choice index
  bool max_tokens_given = false;  // by the client: it must then fit into the context
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  std::vector<std::string> ignored_fields;  // unknown ones, for the log
};

ApiResult<ApiRequest> parse_chat_request(std::string_view body, const RequestRules& rules);
ApiResult<ApiRequest> parse_completion_request(std::string_view body, const RequestRules& rules);

}  // namespace volley::serve
