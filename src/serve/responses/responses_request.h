// The body of POST /v1/responses: what the Responses API calls differently from a chat completion, which it is
// otherwise. What it needs of earlier responses comes from the store.
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
  std::shared_ptr<StoredTurn> turn;  // of the input; null: the response is not to be kept
  ResponseTools tools;
  bool seals_thoughts = false;  // the client wants "encrypted_content"
  std::string echo;  // the request's own settings as members of the response object, the first without a comma
};

// Borrowed for the length of a call.
struct ResponsesContext {
  const RequestRules& rules;
  ResponseStore& store;
  std::string tenant;
  std::string id_suffix;              // of the response's id and of its items'
  size_t max_conversation_bytes = 0;  // of what previous_response_id and references bring
};

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ResponsesContext& context);

// The fields that the parser treats in its own way: what openapi.json must describe beside those of a chat completion.
std::set<std::string_view> responses_fields(const RequestRules& rules);

}  // namespace volley::serve
