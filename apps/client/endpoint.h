// An OpenAI-compatible endpoint: its model, and the fields of requests to it.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/request_settings.h"
#include "apps/client/http_client.h"

namespace volley::apps {

struct Endpoint {
  std::string base;                  // "http://host:port/v1"
  std::string model;                 // the given model, or the first that it serves
  std::string owner;                 // the server's own name: "volley", "vllm", …
  std::vector<std::string> headers;  // for every call
  AnswerDefaults defaults;           // for chats, as far as it names them

  bool is_volley() const { return owner == "volley"; }
};

// "http://host:8000", with or without "/v1" and "/". kInvalidArgument: not http or https.
Result<std::string> endpoint_base(const std::string& url);

// Asks GET /v1/models. kUnavailable: no answer, with the reason; kNotFound: it serves no model, or not `model`.
// `stopped` ends the wait.
Result<Endpoint> probe_endpoint(HttpClient* client, const std::string& url, const std::optional<std::string>& model,
                                std::vector<std::string> headers, const std::function<bool()>& stopped);

// Writes the fields of `settings` under their API names, except stops, logprobs and grammars. `index` is added to a
// seed, so that equal prompts differ.
void put_settings(const RequestSettings& settings, uint64_t index, nlohmann::ordered_json* body);

}  // namespace volley::apps
