// The body of POST /v1/responses: reads what differs from a chat completion. Earlier responses come from the store.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "serve/api/openai_request.h"
#include "serve/responses/response_store.h"
#include "serve/responses/response_tools.h"

namespace volley::serve {

struct ResponsesRequest {
  ApiRequest chat;
  std::shared_ptr<StoredTurn> turn;  // its input; null: the response is not stored
  ResponseTools tools;
  bool seals_thoughts = false;  // the client wants "encrypted_content"
  std::string echo;             // the request's settings as members of the response object, the first without a comma
};

// Borrowed for a call.
struct ResponsesContext {
  const RequestRules& rules;
  ResponseStore& store;
  std::string tenant;
  std::string id_suffix;              // ends the ids of the response and its items
  size_t max_conversation_bytes = 0;  // bound on data from previous_response_id and references
};

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ResponsesContext& context);

// Fields that this parser reads itself, for openapi.json beside those of a chat completion.
std::set<std::string_view> responses_fields(const RequestRules& rules);

}  // namespace volley::serve
