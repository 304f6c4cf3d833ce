// The answers of POST /v1/responses: a response object, or the events by which it grows. No sockets; one
// thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/api/openai_response.h"
#include "serve/responses/response_items.h"
#include "serve/responses/response_tools.h"

namespace volley::serve {

// What a response says beside its output.
struct ResponseObject {
  std::string id_suffix;  // of its items' ids
  std::string echo;       // this and the next two: see ResponsesRequest
  ResponseTools tools;
  bool seals_thoughts = false;
  // Keeps a response that has ended, complete or cut off; null: it is not to be kept.
  std::function<void(std::vector<ResponseItem> output, std::string json)> keep;
};

std::unique_ptr<ResponseWriter> responses_writer(ResponseInfo info, ResponseObject object, bool stream);

}  // namespace volley::serve
