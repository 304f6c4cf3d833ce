// The body of POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API: what it calls differently from
// a chat completion, which it is otherwise. Pure.
#pragma once

#include <set>
#include <string_view>

#include "serve/api/openai_request.h"

namespace volley::serve {

struct MessagesRequest {
  ApiRequest chat;
  bool thinking = false;         // the model is asked to think, and its thoughts are wanted
  bool seals_thoughts = false;   // in the signatures of their blocks alone
  int32_t thinking_tokens = -1;  // at most so many, of a model that can be held to it; -1: as many as it likes
};

// `to_count`: the prompt alone is wanted, so that "max_tokens" may be missing.
ApiResult<MessagesRequest> parse_messages_request(std::string_view body, const RequestRules& rules, bool to_count);

// The fields that the parser treats in its own way: what openapi.json must describe beside those of a chat completion.
std::set<std::string_view> messages_fields(const RequestRules& rules);

}  // namespace volley::serve
