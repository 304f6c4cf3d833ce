#include "apps/client/endpoint.h"

#include <nlohmann/json.hpp>

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename T>
void put(OrderedJson* body, const char* name, const std::optional<T>& value) {
  if (value) (*body)[name] = *value;
}

SamplingParams read_sampling(const OrderedJson& json) {
  SamplingParams sampling;
  const auto read = [&json](const char* name, auto* into) {
    const auto found = json.find(name);
    if (found != json.end() && found->is_number()) found->get_to(*into);
  };
  read("temperature", &sampling.temperature);
  read("top_p", &sampling.top_p);
  read("top_k", &sampling.top_k);
  read("min_p", &sampling.min_p);
  read("repetition_penalty", &sampling.repetition_penalty);
  read("presence_penalty", &sampling.presence_penalty);
  read("frequency_penalty", &sampling.frequency_penalty);
  return sampling;
}

// Fields that a Volley says of its model. Older ones do not say "chat_sampling".
AnswerDefaults read_defaults(const OrderedJson& card) {
  AnswerDefaults defaults;
  if (!card.is_object() || !card.contains("default_sampling")) return defaults;
  const OrderedJson& usual = card["default_sampling"];
  const OrderedJson chat = card.value("chat_sampling", usual);
  defaults.sampling = read_sampling(chat);
  defaults.milder = chat != usual;
  if (const auto thinking = card.find("thinking"); thinking != card.end() && thinking->is_boolean()) {
    defaults.thinking = thinking->get<bool>();
  }
  return defaults;
}

}  // namespace

void put_settings(const RequestSettings& settings, uint64_t index, nlohmann::ordered_json* body) {
  put(body, "max_tokens", settings.max_tokens);
  put(body, "min_tokens", settings.min_tokens);
  put(body, "temperature", settings.temperature);
  put(body, "top_p", settings.top_p);
  put(body, "top_k", settings.top_k);
  put(body, "min_p", settings.min_p);
  put(body, "repetition_penalty", settings.repetition_penalty);
  put(body, "presence_penalty", settings.presence_penalty);
  put(body, "frequency_penalty", settings.frequency_penalty);
  put(body, "ignore_eos", settings.ignore_eos);
  // Servers read a seed as a signed number.
  if (settings.seed) (*body)["seed"] = (*settings.seed + index) & 0x7fffffffffffffffu;
}

Result<std::string> endpoint_base(const std::string& url) {
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return invalid_argument("--url " + url + " is not the address of a server: give http://HOST:PORT.");
  }
  std::string base = url;
  while (base.ends_with('/')) base.pop_back();
  if (!base.ends_with("/v1")) base += "/v1";
  return base;
}

Result<Endpoint> probe_endpoint(HttpClient* client, const std::string& url, const std::optional<std::string>& model,
                                std::vector<std::string> headers, const std::function<bool()>& stopped) {
  Endpoint endpoint;
  VOLLEY_ASSIGN(endpoint.base, endpoint_base(url));
  endpoint.headers = std::move(headers);
  const std::string where = endpoint.base + "/models";
  std::string body;
  const HttpEnd end = client->run(
      {where, "", endpoint.headers}, [&](std::string_view bytes) { body += bytes; }, [&] { return !stopped(); });
  if (end.stopped) return Error{ErrorCode::kCancelled, "Interrupted."};
  if (!end.failure.empty()) return Error{ErrorCode::kUnavailable, where + " does not answer: " + end.failure + "."};
  if (end.status == 401 || end.status == 403) {
    return Error{ErrorCode::kUnavailable, where + " answers with status " + std::to_string(end.status) +
                                              ": give one of its keys with --api-key or in VOLLEY_API_KEY."};
  }
  const OrderedJson json = OrderedJson::parse(body, nullptr, false);
  const auto data = json.is_object() ? json.find("data") : json.end();
  if (end.status != 200 || data == json.end() || !data->is_array()) {
    return Error{ErrorCode::kUnavailable, where + " answers with status " + std::to_string(end.status) +
                                              " and no list of models: is this an OpenAI-compatible server?"};
  }
  for (const OrderedJson& entry : *data) {
    if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_string()) continue;
    const std::string id = entry["id"];
    if (model && id != *model) continue;
    endpoint.model = id;
    const OrderedJson owner = entry.value("owned_by", OrderedJson());
    if (owner.is_string()) endpoint.owner = owner;
    if (endpoint.is_volley()) endpoint.defaults = read_defaults(entry.value("volley", OrderedJson()));
    return endpoint;
  }
  return not_found(where + (model ? " does not list the model " + *model + "." : " lists no model."));
}

}  // namespace volley::apps
