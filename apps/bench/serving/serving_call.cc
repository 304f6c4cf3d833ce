#include "apps/bench/serving/serving_call.h"

#include <nlohmann/json.hpp>

namespace volley::apps {

using Json = nlohmann::ordered_json;

HttpCall make_call(const Endpoint& endpoint, const Sample& sample, const RequestShape& shape, uint64_t index) {
  Json body = {{"model", endpoint.model}};
  if (!shape.chat) {
    body["prompt"] = sample.prompt;
  } else if (sample.messages_json.empty()) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", sample.prompt}}});
  } else {
    body["messages"] = Json::parse(sample.messages_json);
  }
  RequestSettings settings = shape.settings;
  if (!settings.max_tokens) settings.max_tokens = sample.max_tokens;
  put_settings(settings, index, &body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (!shape.cache_salt.empty() && endpoint.knows_cache_salt()) body["cache_salt"] = shape.cache_salt;
  if (endpoint.is_volley()) {
    body["volley"] = {{"tokens_per_step", true}};
    if (shape.speculation) body["volley"]["speculation"] = *shape.speculation;
  }
  if (!shape.extra_json.empty()) body.update(Json::parse(shape.extra_json));
  return {endpoint.base + (shape.chat ? "/chat/completions" : "/completions"),
          body.dump(-1, ' ', false, Json::error_handler_t::replace), endpoint.headers};
}

}  // namespace volley::apps
