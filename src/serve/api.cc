#include "serve/api.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

std::string random_prefix() {
  std::random_device device;
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", device(), device());
  return text.data();
}

HttpResponse json_response(const Json& json) {
  HttpResponse response;
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

Json model_json(const std::string& name, std::time_t created, int max_model_len) {
  return {{"id", name},
          {"object", "model"},
          {"created", static_cast<int64_t>(created)},
          {"owned_by", "volley"},
          {"max_model_len", max_model_len}};
}

// A browser may send JSON to any address without asking if it calls it text: that is refused here.
bool is_json(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  type.erase(std::remove(type.begin(), type.end(), ' '), type.end());
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type.empty() || type == "application/json";
}

const char* prompt_field(ApiKind kind) {
  return kind == ApiKind::kChat ? "messages" : "prompt";
}

}  // namespace

Api::Api(Engine& engine, const ServerOptions& options)
    : engine_(engine),
      options_(options),
      metrics_(std::make_shared<Metrics>(options.served_model_names.front())),
      started_(std::time(nullptr)),
      id_prefix_(random_prefix()) {}

bool Api::takes_long(const HttpRequest& request) {
  const auto target = route(request);
  const Route* found = std::get_if<Route>(&target);
  return found && (found->endpoint == Endpoint::kChatCompletions || found->endpoint == Endpoint::kCompletions ||
                   found->endpoint == Endpoint::kMetrics);
}

// What a client sends may ask for more memory than there is: that must cost its request and nothing else.
Api::Reply Api::handle(const HttpRequest& request, std::function<void()> wake) {
  try {
    return dispatch(request, std::move(wake));
  } catch (const std::exception& error) {
    if (options_.log) options_.log->error("{} {} failed: {}", request.method, path_label(request), error.what());
    return error_response(http_error(500, "The server failed on this request; its log says why."));
  }
}

Api::Reply Api::dispatch(const HttpRequest& request, std::function<void()> wake) {
  auto target = route(request);
  if (auto* response = std::get_if<HttpResponse>(&target)) return std::move(*response);
  const Route& found = std::get<Route>(target);
  switch (found.endpoint) {
    case Endpoint::kChatCompletions:
      return generate(ApiKind::kChat, request, std::move(wake));
    case Endpoint::kCompletions:
      return generate(ApiKind::kCompletion, request, std::move(wake));
    case Endpoint::kModels:
      return models();
    case Endpoint::kModel:
      return model(found.model);
    case Endpoint::kHealth:
      return json_response({{"status", "ok"}});
    case Endpoint::kMetrics: {
      HttpResponse response;
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = metrics_->text(engine_.stats());
      return response;
    }
  }
  return error_response(http_error(500, "The endpoint has no handler."));
}

HttpResponse Api::models() const {
  Json data = Json::array();
  for (const std::string& name : options_.served_model_names) {
    data.push_back(model_json(name, started_, engine_.info().max_model_len));
  }
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse Api::model(const std::string& name) const {
  const auto& names = options_.served_model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return error_response(model_not_found(name));
  return json_response(model_json(name, started_, engine_.info().max_model_len));
}

Api::Reply Api::generate(ApiKind kind, const HttpRequest& request, std::function<void()> wake) {
  if (!is_json(request.content_type)) {
    return error_response(http_error(415, "The body must be JSON: send \"Content-Type: application/json\"."));
  }
  const RequestRules rules{engine_.info(), options_.served_model_names, options_.max_n, options_.max_choices};
  auto parsed =
      kind == ApiKind::kChat ? parse_chat_request(request.body, rules) : parse_completion_request(request.body, rules);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return error_response(*error);
  ApiRequest& api_request = std::get<ApiRequest>(parsed);
  warn_ignored(api_request.ignored_fields);
  auto prompts = encode_prompts(api_request);
  if (const auto* error = std::get_if<ApiError>(&prompts)) return error_response(*error);
  auto plan = make_plan(std::move(api_request), std::move(std::get<0>(prompts)));
  auto started = Generation::start(engine_, metrics_, std::move(plan), std::move(wake));
  if (const auto* error = std::get_if<ApiError>(&started)) return error_response(*error);
  return std::get<0>(std::move(started));
}

ApiResult<std::vector<std::vector<TokenId>>> Api::encode_prompts(const ApiRequest& request) const {
  const std::string field = prompt_field(request.kind);
  std::vector<Prompt> texts = request.prompts;
  if (request.kind == ApiKind::kChat) {
    auto rendered = engine_.render_chat(request.chat);
    if (!rendered.ok()) return api_error(rendered.error(), field);
    texts.emplace_back(std::move(*rendered));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (Prompt& text : texts) {
    if (auto* ids = std::get_if<std::vector<TokenId>>(&text)) {
      prompts.push_back(std::move(*ids));
    } else {
      auto encoded = engine_.encode(std::get<std::string>(text), request.add_special_tokens);
      if (!encoded.ok()) return api_error(encoded.error(), field);
      prompts.push_back(std::move(*encoded));
    }
    if (prompts.back().empty()) return invalid_field(field, "\"" + field + "\" gives no tokens; send some text.");
    if (auto error = check_length(request, prompts.back().size())) return *error;
  }
  return prompts;
}

std::optional<ApiError> Api::check_length(const ApiRequest& request, size_t prompt_tokens) const {
  const auto prompt = static_cast<int64_t>(prompt_tokens);
  const int64_t most = engine_.info().max_model_len;
  const int64_t output = request.max_tokens_given ? request.generate.max_tokens : 1;
  if (prompt + output <= most) return std::nullopt;
  const std::string start = "This model's maximum context length is " + std::to_string(most) +
                            " tokens, but the prompt has " + std::to_string(prompt);
  return context_too_long(prompt_field(request.kind),
                          request.max_tokens_given ? start + " and the output may take " + std::to_string(output) +
                                                         ". Shorten the prompt or ask for fewer tokens."
                                                   : start + ", which leaves no room for output. Shorten the prompt.");
}

Generation::Plan Api::make_plan(ApiRequest request, std::vector<std::vector<TokenId>> prompts) {
  Generation::Plan plan;
  plan.stream = request.stream;
  plan.max_unsent_bytes = options_.max_unsent_bytes;
  plan.info.kind = request.kind;
  plan.info.id = new_response_id(request.kind);
  plan.info.model = request.model;
  plan.info.created = static_cast<int64_t>(std::time(nullptr));
  plan.info.n = request.n;
  plan.info.logprobs = request.generate.sampling.logprobs >= 0;
  plan.info.include_usage = request.include_usage;
  plan.info.token_text = [&engine = engine_](TokenId id) { return engine.decode({&id, 1}, false); };
  for (size_t i = 0; request.echo && i < prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    plan.info.echo.push_back(text ? *text : engine_.decode(prompts[i], false));
  }
  for (std::vector<TokenId>& prompt : prompts) {
    GenerateRequest generate = request.generate;
    if (!request.max_tokens_given && generate.max_tokens > 0) {
      // The schema's own default gives way to the context; a client's wish is an error instead.
      const int64_t room = engine_.info().max_model_len - static_cast<int64_t>(prompt.size());
      generate.max_tokens = static_cast<int32_t>(std::min<int64_t>(generate.max_tokens, room));
      generate.min_tokens = std::min(generate.min_tokens, generate.max_tokens);
    }
    generate.prompt = std::move(prompt);
    for (int j = 0; j < request.n; ++j) {
      generate.sampling.choice_index = static_cast<uint32_t>(j);
      plan.choices.push_back(generate);
    }
  }
  return plan;
}

std::string Api::new_response_id(ApiKind kind) {
  std::array<char, 24> counter{};
  std::snprintf(counter.data(), counter.size(), "%08llx", static_cast<unsigned long long>(next_id_.fetch_add(1)));
  return (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + id_prefix_ + counter.data();
}

// Once a name, so that a client that always sends a field does not fill the log; and not without end.
void Api::warn_ignored(const std::vector<std::string>& fields) {
  constexpr size_t kMaxNames = 256;
  if (!options_.log) return;
  for (const std::string& field : fields) {
    bool fresh = false;
    {
      const std::lock_guard lock(ignored_mutex_);
      fresh = ignored_.size() < kMaxNames && ignored_.insert(field).second;
    }
    // As JSON: a name may hold line ends.
    if (fresh)
      options_.log->warn("ignoring the unknown request field {}",
                         Json(field).dump(-1, ' ', true, Json::error_handler_t::replace));
  }
}

}  // namespace volley::serve
