// An OpenAI-compatible endpoint: what it serves, and the requests that go there.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/serving/dataset.h"
#include "apps/bench/serving/http_client.h"
#include "apps/request_settings.h"

namespace volley::apps {

struct Endpoint {
  std::string base;                  // "http://host:port/v1"
  std::string model;                 // the first that it serves, unless one was named
  std::string owner;                 // who serves it, as it says itself: "volley", "vllm", …
  std::vector<std::string> headers;  // of every call

  bool is_volley() const { return owner == "volley"; }
  // Whether equal prompts of different salts share nothing.
  bool knows_cache_salt() const { return is_volley() || owner == "vllm"; }
};

// "http://host:8000", with or without "/v1" and "/". kInvalidArgument: not http or https.
Result<std::string> endpoint_base(const std::string& url);

// Asks GET /v1/models. kUnavailable: no answer, with the reason; kNotFound: it serves no model, or not `model`.
// `stopped` ends the waiting.
Result<Endpoint> probe_endpoint(HttpClient* client, const std::string& url, const std::optional<std::string>& model,
                                std::vector<std::string> headers, const std::function<bool()>& stopped);

struct RequestShape {
  bool chat = true;                 // else /v1/completions; samples with messages need chat
  RequestSettings settings;         // what is not given is not sent
  std::optional<bool> speculation;  // of Volley: its own switch
  std::string cache_salt;           // prefixes are shared among requests of one salt only; sent where it is known
  std::string extra_json;           // a JSON object whose fields override the others; may be empty
};

// A streamed request with usage. `index`: its seed is the settings' seed plus this, so that equal prompts differ.
HttpCall make_call(const Endpoint& endpoint, const Sample& sample, const RequestShape& shape, uint64_t index);

}  // namespace volley::apps
