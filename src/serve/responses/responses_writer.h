// Answers of POST /v1/responses: a response object, or its events. No sockets; one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/api/openai_response.h"
#include "serve/responses/response_items.h"
#include "serve/responses/response_tools.h"

namespace volley::serve {

// A response's data beside its output.
struct ResponseObject {
  std::string id_suffix;  // ends its items' ids
  std::string echo;       // this and the next two: see ResponsesRequest
  ResponseTools tools;
  bool seals_thoughts = false;
  // Stores an ended response, complete or cut; null: it is not stored.
  std::function<void(std::vector<ResponseItem> output, std::string json)> keep;
};

std::unique_ptr<ResponseWriter> responses_writer(ResponseInfo info, ResponseObject object, bool stream);

}  // namespace volley::serve
