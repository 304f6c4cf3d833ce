// One request of a load.
#pragma once

#include <optional>
#include <string>

#include "apps/bench/serving/dataset.h"
#include "apps/client/endpoint.h"

namespace volley::apps {

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
