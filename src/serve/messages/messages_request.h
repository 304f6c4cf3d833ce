// The body of POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API: reads what differs from a chat
// completion. Pure.
#pragma once

#include <set>
#include <string_view>

#include "serve/api/openai_request.h"

namespace volley::serve {

struct MessagesRequest {
  ApiRequest chat;
  bool thinking = false;         // asks the model to think, and wants its thoughts
  bool seals_thoughts = false;   // thoughts only as signatures of their blocks
  int32_t thinking_tokens = -1;  // limit for a model that can keep one; -1: no limit
};

// `to_count`: only the prompt is wanted, so "max_tokens" may be missing.
ApiResult<MessagesRequest> parse_messages_request(std::string_view body, const RequestRules& rules, bool to_count);

// Fields that this parser reads itself, for openapi.json beside those of a chat completion.
std::set<std::string_view> messages_fields(const RequestRules& rules);

}  // namespace volley::serve
